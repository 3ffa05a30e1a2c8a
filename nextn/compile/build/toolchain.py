"""What compiles: versions and sources. Graphs made by an equal `Toolchain` are interchangeable."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

import nextn.compile
import nextn.graphs
import nextn.runtime.contract
import nextn.weights
from nextn.compile.build.compiler_command import find_compiler
from nextn.compile.targets.aoti.instruction_set import InstructionSet, choose_instruction_set
from nextn.compile.targets.ascend.requirements import torch_npu_version
from nextn.compile.targets.lowering import Lowering
from nextn.compile.targets.onnx.requirements import onnx_version
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.version import TORCH_VERSION, VERSION


@dataclass(frozen=True)
class Toolchain:
    """`sources_sha256` covers the Python files that decide what a graph computes and how it is built."""

    nextn: str
    sources_sha256: str
    torch: str
    compiler: str
    instruction_set: InstructionSet


def detect_toolchain(isa: str, lowering: Lowering) -> Toolchain:
    """What compiles for a lowering here.

    Raises ExecutionError without a C++ compiler (aoti), torch_npu (air, fused operators) or onnx, or with
    another torch; UsageError for the ISA.
    """
    found = torch.__version__.split("+")[0]
    if found != TORCH_VERSION:
        raise ExecutionError(
            "graphs compile with one torch version only", expected=TORCH_VERSION, found=found
        )
    instruction_set = InstructionSet("", None, ())
    match lowering.emit:
        case "air":
            compiler = f"torch_npu {torch_npu_version()}"
        case "onnx":
            compiler = f"onnx {onnx_version()}, opset {lowering.opset}"
        case "pt2":
            compiler = f"torch_npu {torch_npu_version()}" if lowering.chosen_ops else "torch.export"
        case _:
            compiler, instruction_set = find_compiler().description, choose_instruction_set(isa)
    return Toolchain(VERSION, _sources_sha256(), found, compiler, instruction_set)


def _sources_sha256() -> str:
    digest = hashlib.sha256()
    for package in (nextn.compile, nextn.graphs, nextn.runtime.contract, nextn.weights):
        folder = Path(package.__path__[0])
        for file in sorted(folder.rglob("*.py")):
            name = file.relative_to(folder)
            # The bundled checkpoint lies under weights/; its own files are no part of the tool.
            if name.parts[0] != "demo":
                digest.update(f"{package.__name__}/{name.as_posix()}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
