"""The target `air`: GE IR for CANN's offline compiler; `atc` turns each file into an `.om`.

An artifact has a script that does this, and `--import-om` brings the files back into it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nextn.compile.targets.ascend.flags import WEIGHTS_AS
from nextn.compile.targets.ascend.requirements import check_workers, import_torch_npu, torch_npu_version
from nextn.compile.targets.target import Flag, Target, Tools, Written
from nextn.runtime.contract import manifest
from nextn.runtime.contract.errors import UsageError
from nextn.runtime.contract.manifest import Device

if TYPE_CHECKING:
    from nextn.compile.build.trace import TracedGraph
    from nextn.compile.build.worker import GraphJob
    from nextn.compile.targets.fused_op import FusedOp

SCRIPT = "build_om.sh"
OM_FOLDER = "om"
"""Where the script puts its files, inside the artifact, with what else atc writes."""

SOC_FILE = "soc.txt"
"""Beside them: the chip they were compiled for; it is there when all are."""

_HEAD = """#!/bin/sh
# Compiles every graph of this artifact for one Ascend chip. Needs CANN's environment: source its set_env.sh.
# Usage: sh {script} SOC    as `npu-smi info` names the chip, for example Ascend910B1 or Ascend910_9391
# Then: nextn-compile --import-om ARTIFACT/{folder} -o ARTIFACT
# Written by nextn-compile. It was never run on a machine with CANN: atc comes with CANN only.
set -eu
soc=${{1:?usage: sh {script} SOC}}
cd "$(dirname "$0")"
mkdir -p {folder}
cd {folder}
rm -f {soc_file}
"""

_LINE = 'atc --framework=1 --model=../{air} --output={stem} --soc_version="$soc"\n'

_TAIL = 'echo "$soc" > {soc_file}\n'


def _check_custom_ops(arguments: argparse.Namespace, target: Target) -> None:
    if arguments.npu_custom_ops is None:
        return
    if not isinstance(target, AirTarget):
        raise UsageError(
            "--npu-custom-ops names operators of GE IR, which --device npu --emit air writes",
            found=f"--device {target.device} --emit {target.name}",
        )
    from nextn.compile.targets.ascend.fused_ops import CUSTOM_OPS

    for name in target.custom_ops:
        if name not in CUSTOM_OPS:
            expected = f"none, or names among {','.join(CUSTOM_OPS)}"
            raise UsageError("unknown --npu-custom-ops", expected=expected, found=repr(name))


def _import_om(arguments: argparse.Namespace, idle: argparse.Namespace) -> None:
    from nextn.compile.targets.air.import_om import import_command

    import_command(arguments, idle)


@dataclass(frozen=True)
class AirTarget(Target):
    """GE IR; `custom_ops` are operators beside torch_npu's own that graphs may call."""

    name = "air"
    devices = ("npu",)
    suffix = ".air"
    own_entries = frozenset({SCRIPT, OM_FOLDER})
    fixed_ops = {"write_rows": "scatter_nd_update"}
    flags = (
        WEIGHTS_AS,
        Flag(
            "--npu-custom-ops",
            {
                "metavar": "NAME,NAME",
                "help": "GE operators of packages that atc will find, which graphs may call, "
                "SparseAttnSharedkv for example (default: none)",
            },
            _check_custom_ops,
        ),
        Flag(
            "--import-om",
            {"metavar": "DIR", "help": "collect .om files compiled elsewhere"},
            command=_import_om,
        ),
    )

    custom_ops: tuple[str, ...] = ()

    @classmethod
    def from_arguments(cls, device: Device, arguments: argparse.Namespace) -> Self:
        named = arguments.npu_custom_ops
        custom_ops = () if named in (None, "none") else tuple(sorted(set(named.split(","))))
        return cls(device, keeps_int8=arguments.weights_as == "stored", custom_ops=custom_ops)

    @classmethod
    def import_compiler(cls) -> None:
        import_torch_npu()

    @classmethod
    def leftovers(cls, artifact: Path) -> list[Path]:
        from nextn.compile.targets.air.import_om import leftover_parts

        return leftover_parts(artifact)

    def requires(self, ops: Mapping[str, str]) -> tuple[str, ...]:
        return ("libascendcl",)

    @property
    def entry_rows_multiples(self) -> tuple[int, ...]:
        from nextn.compile.targets.ascend.fused_ops import reads_blocks
        from nextn.compile.targets.ascend.fused_ops.attention import ENTRY_ROWS_MULTIPLES

        return ENTRY_ROWS_MULTIPLES if reads_blocks(self.custom_ops) else (1,)

    def fused_ops(self) -> Sequence[FusedOp]:
        from nextn.compile.targets.ascend.fused_ops import FUSED_OPS

        return FUSED_OPS

    def recorded_options(self) -> dict[str, str]:
        return {"custom_ops": ",".join(self.custom_ops) or "none"}

    def unused_options(self, ops: Mapping[str, str]) -> Sequence[str]:
        from nextn.compile.targets.ascend.fused_ops import uncalled

        return uncalled(self.custom_ops, ops)

    def as_compiled(self, record: manifest.Target) -> manifest.Target:
        """Of graphs that atc has made `.om` files of, too."""
        return replace(record, emit="air", soc=self.soc) if record.emit == "om" else record

    def tools(self) -> Tools:
        return Tools(f"torch_npu {torch_npu_version()}")

    def check_workers(self, worker_command: Sequence[str]) -> None:
        check_workers(worker_command, self.name)

    def write_graph(self, job: GraphJob, traced: TracedGraph) -> Written:
        from nextn.compile.targets.air.ge_program import write_air
        from nextn.graphs.phases import slots_input

        program = write_air(traced, slots_input(job.name, job.batch), job.output, self.custom_ops)
        return Written(program.fused_ops, program.returns)

    def extra_files(self, graph_files: Sequence[str]) -> Mapping[str, str]:
        return {SCRIPT: build_om_script(graph_files)}


def build_om_script(graph_files: Sequence[str]) -> str:
    """One `atc` line per graph; `--framework=1` is GE IR. `graph_files` are relative to the artifact."""
    lines = [
        _LINE.format(air=file, stem=file.rpartition("/")[2].removesuffix(".air")) for file in graph_files
    ]
    names = {"script": SCRIPT, "folder": OM_FOLDER, "soc_file": SOC_FILE}
    return _HEAD.format(**names) + "".join(lines) + _TAIL.format(**names)
