"""The target `onnx`: standard ONNX operators, with state as `past.NAME` in and as `present.NAME` out."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Self

from nextn.compile.targets.target import GRAPHS_FOLDER, WEIGHTS_FILE, Flag, Target, Tools, Written
from nextn.runtime.contract.errors import ExecutionError, UsageError
from nextn.runtime.contract.manifest import ComputeDtype, Device

if TYPE_CHECKING:
    from nextn.compile.build.trace import TracedGraph
    from nextn.compile.build.worker import GraphJob

DEFAULT_OPSET = 18
"""The newest that the ONNX plugins of Ascend's ATC register."""

NEWEST_OPSET = 26
"""The newest that graphs were checked and run with."""


def _check_opset(arguments: argparse.Namespace, target: Target) -> None:
    if arguments.opset is None:
        return
    if not isinstance(target, OnnxTarget):
        raise UsageError(
            "--opset is an operator set of ONNX", expected="--emit onnx", found=f"--emit {target.name}"
        )
    if not DEFAULT_OPSET <= arguments.opset <= NEWEST_OPSET:
        raise UsageError(
            "--opset is out of range", expected=f"{DEFAULT_OPSET}..{NEWEST_OPSET}", found=arguments.opset
        )


@dataclass(frozen=True)
class OnnxTarget(Target):
    """ONNX models in the operator set `opset`."""

    name = "onnx"
    devices = ("cpu",)
    suffix = ".onnx"
    # An ONNX graph may not name a file outside its own folder, be it through a link.
    weights_file = f"{GRAPHS_FOLDER}/{WEIGHTS_FILE}"
    fixed_ops = {"write_rows": "scatter_nd"}
    flags = (
        Flag(
            "--opset",
            {"type": int, "metavar": "N", "help": f"ONNX operator set (default: {DEFAULT_OPSET})"},
            _check_opset,
        ),
    )

    opset: int = DEFAULT_OPSET

    @classmethod
    def default_dtype(cls, device: str) -> ComputeDtype:
        return "float32"

    @classmethod
    def from_arguments(cls, device: Device, arguments: argparse.Namespace) -> Self:
        return cls(device, opset=DEFAULT_OPSET if arguments.opset is None else arguments.opset)

    def requires(self, ops: Mapping[str, str]) -> tuple[str, ...]:
        return ("onnxruntime",)

    def tools(self) -> Tools:
        try:
            version = metadata.version("onnx")
        except metadata.PackageNotFoundError:
            raise ExecutionError(
                "graphs as ONNX need the package onnx; pip install 'nextn[onnx]'",
                expected="onnx",
                found="none",
            ) from None
        return Tools(f"onnx {version}, opset {self.opset}")

    def write_graph(self, job: GraphJob, traced: TracedGraph) -> Written:
        from nextn.compile.targets.onnx.onnx_program import write_onnx

        write_onnx(traced, job.shape, self.opset, job.weights, job.output)
        return Written()
