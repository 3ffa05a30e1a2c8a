"""The process that compiles one graph: `python -P -m nextn.compile.build.worker JOB.json PARENT_PID`.

With `CHECK_COMPILER` and a target in place of the job it only tells whether it could compile for the target.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextn.compile.targets.registry import TARGETS
from nextn.compile.targets.target import CHECK_COMPILER, Target, Tools
from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.collectives import Parallel
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.errors import NextnError
from nextn.runtime.contract.strict_json import decode

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class GraphJob:
    """One graph to compile. `output` is the file to write; its `.json` sibling will describe it.

    `weights` is the packed file of the artifact.
    """

    name: str
    batch: int
    shape: SessionShape
    target: Target
    tools: Tools
    output: Path
    weights: Path

    @property
    def key(self) -> str:
        return f"{self.name}.b{self.batch}"

    @property
    def description(self) -> Path:
        return self.output.with_suffix(".json")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self) | {"emit": self.target.name}, default=str)

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
        return cls(
            name=raw["name"],
            batch=raw["batch"],
            shape=SessionShape(**shape),
            target=decode(TARGETS[raw["emit"]], raw["target"]),
            tools=decode(Tools, raw["tools"]),
            output=Path(raw["output"]),
            weights=Path(raw["weights"]),
        )


def run_job(job: GraphJob) -> None:
    """Traces and compiles one graph; writes its file, then its description."""
    # A process of one graph ends before its garbage matters: collecting as often as usual takes 7 % of it.
    gc.set_threshold(50_000, 20, 100)
    # Imported here so that the job itself is readable without loading the compiler.
    from nextn.compile.build.trace import trace, unwritten_model

    # No weight value reaches a graph, and none takes memory: a worker is as small for a large model.
    model, state = unwritten_model(job.shape)
    traced = trace(job.name, job.batch, model, state, job.shape)
    written = job.target.write_graph(job, traced)
    with open(job.output, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    record = dataclasses.asdict(traced.spec) | {"bytes": job.output.stat().st_size, "sha256": sha256}
    record |= {"returns": written.returns, "fused_ops": dict(written.fused_ops)}
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
        if job.startswith(CHECK_COMPILER):
            TARGETS[job.removeprefix(CHECK_COMPILER)].import_compiler()
        else:
            run_job(GraphJob.from_json(Path(job).read_text()))
    except NextnError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
