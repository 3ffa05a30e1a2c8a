"""The process that compiles one graph: `python -P -m nextn.compile.build.worker JOB.json PARENT_PID`.

With `IMPORT_TORCH_NPU` as the job it only tells whether it could convert graphs.

A process of its own bounds the memory of a compile, keeps a compiler crash away from the other graphs,
and lets several graphs compile at once.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextn.compile.targets.aoti.instruction_set import InstructionSet
from nextn.compile.targets.ascend.requirements import IMPORT_TORCH_NPU, import_torch_npu
from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.collectives import Parallel
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.errors import NextnError

if TYPE_CHECKING:
    from nextn.compile.build.trace import TracedGraph

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class GraphJob:
    """One graph to compile. `output` is the file to write; its `.json` sibling will describe it.

    `weights` is the packed file of the artifact; `opset` is for ONNX alone; `fused` lets an exported program
    call torch_npu's fused operators.
    """

    name: str
    batch: int
    shape: SessionShape
    instruction_set: InstructionSet
    output: Path
    emit: str
    weights: Path
    opset: int | None
    custom_ops: tuple[str, ...] = ()
    fused: bool = False

    @property
    def key(self) -> str:
        return f"{self.name}.b{self.batch}"

    @property
    def description(self) -> Path:
        return self.output.with_suffix(".json")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> GraphJob:
        raw: dict[str, Any] = json.loads(text)
        shape = raw["shape"]
        shape |= {
            "config": ModelConfig.from_dict(shape["config"]),
            "batch_sizes": tuple(shape["batch_sizes"]),
            "stored_layouts": tuple(map(tuple, shape["stored_layouts"])),
            "entry_rows_multiples": tuple(shape["entry_rows_multiples"]),
            "parallel": Parallel(**shape["parallel"]),
        }
        target = raw["instruction_set"]
        return cls(
            name=raw["name"],
            batch=raw["batch"],
            shape=SessionShape(**shape),
            instruction_set=InstructionSet(target["march"], target["vector_bits"], tuple(target["features"])),
            output=Path(raw["output"]),
            emit=raw["emit"],
            weights=Path(raw["weights"]),
            opset=raw["opset"],
            custom_ops=tuple(raw["custom_ops"]),
            fused=raw["fused"],
        )


@dataclass(frozen=True)
class Written:
    """What is to be recorded of a graph's file: the forms its ops took, where that was open, and the block
    that an `air` graph returns."""

    forms: Mapping[str, str] = field(default_factory=dict)
    returns: str | None = None


def _write_library(job: GraphJob, traced: TracedGraph) -> Written:
    from nextn.compile.targets.aoti.shared_object import lower_to_shared_object

    lower_to_shared_object(traced.program, job.instruction_set, job.output)
    return Written()


def _write_air(job: GraphJob, traced: TracedGraph) -> Written:
    from nextn.compile.targets.air.write_air import write_air
    from nextn.graphs.phases import slots_input

    program = write_air(traced, slots_input(job.name, job.batch), job.output, job.custom_ops)
    return Written(program.forms, program.returns)


def _write_exported_program(job: GraphJob, traced: TracedGraph) -> Written:
    from nextn.compile.targets.pt2.exported_program import write_exported_program

    if not job.fused:
        write_exported_program(traced, job.output)
        return Written()
    import_torch_npu()
    from nextn.compile.targets.ascend.fused_ops.choice import ChosenForms, recorded

    chosen = ChosenForms()
    write_exported_program(traced, job.output, chosen.forms())
    return Written(recorded(chosen.taken))


def _write_onnx(job: GraphJob, traced: TracedGraph) -> Written:
    from nextn.compile.targets.onnx.write_onnx import write_onnx

    assert job.opset is not None
    write_onnx(traced, job.shape, job.opset, job.weights, job.output)
    return Written()


WRITERS: Mapping[str, Callable[[GraphJob, TracedGraph], Written]] = {
    "aoti": _write_library,
    "air": _write_air,
    "pt2": _write_exported_program,
    "onnx": _write_onnx,
}
"""What writes a graph's file, by the form of the file. Each imports its compiler when it is called."""


def run_job(job: GraphJob) -> None:
    """Traces and lowers one graph; writes its file, then its description."""
    # A process of one graph ends before its garbage matters: collecting as often as usual takes 7 % of it.
    gc.set_threshold(50_000, 20, 100)
    # Imported here so that the job itself is readable without loading the compiler.
    from nextn.compile.build.placeholders import unwritten_model
    from nextn.compile.build.trace import trace

    # No weight value reaches a graph, and none takes memory: a worker is as small for a large model.
    model, state = unwritten_model(job.shape)
    traced = trace(job.name, job.batch, model, state, job.shape)
    written = WRITERS[job.emit](job, traced)
    with open(job.output, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    record = dataclasses.asdict(traced.spec) | {"bytes": job.output.stat().st_size, "sha256": sha256}
    record |= {"returns": written.returns, "forms": dict(written.forms)}
    job.description.write_text(json.dumps(record))


def die_with_parent(parent: int) -> None:
    """Ties this process to the one that started it: a killed compile must not leave workers behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the compile that started this worker is gone")


def main() -> int:
    job, parent = sys.argv[1:]
    die_with_parent(int(parent))
    try:
        if job == IMPORT_TORCH_NPU:
            import_torch_npu()
        else:
            run_job(GraphJob.from_json(Path(job).read_text()))
    except NextnError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
