"""The target `pt2`: exported programs, which a process captures as device graphs when it loads them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from nextn.compile.targets.ascend.flags import WEIGHTS_AS
from nextn.compile.targets.ascend.requirements import check_workers, import_torch_npu, torch_npu_version
from nextn.compile.targets.target import CaptureSummary, Flag, Target, Tools, Written
from nextn.runtime.contract.errors import UsageError
from nextn.runtime.contract.manifest import Device

if TYPE_CHECKING:
    from nextn.compile.build.trace import TracedGraph
    from nextn.compile.build.worker import GraphJob
    from nextn.compile.targets.fused_op import FusedOp
    from nextn.graphs.session_shape import SessionShape


def _check_soc(arguments: argparse.Namespace, target: Target) -> None:
    """Its limits are of what is captured when an artifact is loaded; other graphs have none."""
    if arguments.soc is not None and not (isinstance(target, Pt2Target) and target.device == "npu"):
        raise UsageError(
            "--soc names the chip that captures graphs",
            expected="--device npu --emit pt2",
            found=arguments.soc,
        )


def _check_fused(arguments: argparse.Namespace, target: Target) -> None:
    if arguments.npu_fused and target.device != "npu":
        raise UsageError("--npu-fused chooses operators of an NPU", found=f"--device {target.device}")


@dataclass(frozen=True)
class Pt2Target(Target):
    """Exported programs; with `fused` they call torch_npu's fused operators, which only an NPU has."""

    name = "pt2"
    devices = ("cuda", "npu")
    suffix = ".pt2"
    flags = (
        Flag(
            "--soc",
            {
                "metavar": "NAME",
                "help": "Ascend chip whose capture limits are kept, for example Ascend910B1",
            },
            _check_soc,
        ),
        WEIGHTS_AS,
        Flag(
            "--npu-fused",
            {
                "action": "store_true",
                "help": "let exported programs call torch_npu's fused operators (graphs in GE IR call them "
                "without this flag)",
            },
            _check_fused,
        ),
    )

    fused: bool = False

    @classmethod
    def from_arguments(cls, device: Device, arguments: argparse.Namespace) -> Self:
        stored = arguments.weights_as == "stored"
        return cls(device, arguments.soc, stored, fused=arguments.npu_fused)

    @classmethod
    def import_compiler(cls) -> None:
        import_torch_npu()

    def requires(self, ops: Mapping[str, str]) -> tuple[str, ...]:
        # Fused operators run nowhere but on an NPU; programs without any run uncaptured on a CPU too.
        fused = any(name.startswith("npu_") for names in ops.values() for name in names.split(", "))
        return ("torch", "torch_npu") if fused else ("torch",)

    def fused_ops(self) -> Sequence[FusedOp]:
        from nextn.compile.targets.ascend.fused_ops import FUSED_OPS

        return FUSED_OPS if self.fused else ()

    def recorded_options(self) -> dict[str, str]:
        return {"custom_ops": "none"} if self.fused else {}

    def select_graphs(self, shape: SessionShape) -> tuple[Sequence[tuple[str, int]], CaptureSummary]:
        from nextn.compile.targets.ascend.limits import capture_limits
        from nextn.compile.targets.pt2.capture_plan import plan_captures

        plan, keys = plan_captures(shape, self.soc, None if self.soc is None else capture_limits(self.soc))
        return keys, plan

    def tools(self) -> Tools:
        return Tools(f"torch_npu {torch_npu_version()}" if self.fused else "torch.export")

    def check_workers(self, worker_command: Sequence[str]) -> None:
        if self.fused:
            check_workers(worker_command, self.name)

    def write_graph(self, job: GraphJob, traced: TracedGraph) -> Written:
        from nextn.compile.targets.pt2.exported_program import write_exported_program

        if not self.fused:
            write_exported_program(traced, job.output)
            return Written()
        import_torch_npu()
        from nextn.compile.targets.ascend.fused_ops import offered
        from nextn.compile.targets.fused_op import FusedOpChoice

        choice = FusedOpChoice(offered())
        write_exported_program(traced, job.output, choice.functions())
        return Written(choice.recorded())
