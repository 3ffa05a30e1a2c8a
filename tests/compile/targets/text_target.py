"""A target that writes every graph as text, and, as a program, the compile worker that knows it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, cast

from nextn.compile.build import worker
from nextn.compile.build.trace import TracedGraph
from nextn.compile.targets.fused_op import FusedOp
from nextn.compile.targets.registry import TARGETS
from nextn.compile.targets.target import Flag, Target, Tools, Written
from nextn.runtime.contract.errors import UsageError
from nextn.runtime.contract.manifest import Device, Emit

COMPILERS = {"onnx", "torch_npu", "torchair", "torch._inductor.compile_fx"}
"""What the other targets compile with."""


def _check_margin(arguments: argparse.Namespace, target: Target) -> None:
    if arguments.text_margin and not isinstance(target, TextTarget):
        raise UsageError("--text-margin indents text", found=target.name)


@dataclass(frozen=True)
class TextTarget(Target):
    """`margin` is the number of blanks before a line."""

    name = cast(Emit, "text")
    devices = ("cpu",)
    suffix = ".txt"
    fixed_ops = {"write_rows": "a line"}
    flags = (Flag("--text-margin", {"type": int, "default": 0}, _check_margin),)

    margin: int = 0

    @classmethod
    def from_arguments(cls, device: Device, arguments: argparse.Namespace) -> Self:
        return cls(device, margin=arguments.text_margin)

    def requires(self, ops: Mapping[str, str]) -> tuple[str, ...]:
        return ("a reader",)

    def fused_ops(self) -> Sequence[FusedOp]:
        return (FusedOp("by hand", "int8_linear", lambda *_: None, print),)

    def tools(self) -> Tools:
        return Tools("pen", settings={"ink": "blue"})

    def write_graph(self, job: worker.GraphJob, traced: TracedGraph) -> Written:
        compilers = COMPILERS & set(sys.modules)
        lines = [f"{traced.spec.key} in {job.tools.settings['ink']} beside {sorted(compilers)}"]
        for node in traced.program.graph.nodes:
            if node.op == "call_function":
                lines.append(" " * self.margin + str(node.target))
        job.output.write_text("\n".join(lines) + "\n")
        return Written({"linear": "by hand"})

    def extra_files(self, graph_files: Sequence[str]) -> Mapping[str, str]:
        return {"contents.txt": "\n".join(graph_files)}


WORKER = (sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__)

if __name__ == "__main__":
    TARGETS["text"] = TextTarget
    sys.exit(worker.main())
