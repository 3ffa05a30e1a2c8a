"""The target `aoti`: AOTInductor shared objects for the CPU, whose kernels are those of libnextn_ops."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from nextn.compile.build.compiler_command import find_compiler
from nextn.compile.targets.target import Flag, Target, Tools, Written
from nextn.runtime.contract.errors import UsageError
from nextn.runtime.contract.manifest import ComputeDtype, Device

if TYPE_CHECKING:
    from nextn.compile.build.trace import TracedGraph
    from nextn.compile.build.worker import GraphJob
    from nextn.compile.targets.fused_op import FusedOp

# Every CPU with these has the rest of the level too.
_V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# Inductor switches these on by itself wherever the CPU has them and AVX-512 was chosen.
_V4_EXTENSIONS = ("avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16")


def _check_isa(arguments: argparse.Namespace, target: Target) -> None:
    if not isinstance(target, AotiTarget) and arguments.isa != "native":
        raise UsageError(
            "--isa chooses instructions of a CPU", expected="--emit aoti", found=f"--emit {target.name}"
        )


@dataclass(frozen=True)
class AotiTarget(Target):
    """Shared objects; `isa` is the set of CPU instructions that they may use."""

    name = "aoti"
    devices = ("cpu",)
    suffix = ".so"
    runs_compiler = True
    flags = (
        Flag(
            "--isa",
            {"choices": ("native", "avx2"), "default": "native", "help": "CPU instruction set"},
            _check_isa,
        ),
    )

    isa: Literal["native", "avx2"] = "native"

    @classmethod
    def default_dtype(cls, device: str) -> ComputeDtype:
        return "float32"

    @classmethod
    def from_arguments(cls, device: Device, arguments: argparse.Namespace) -> Self:
        return cls(device, isa=arguments.isa)

    def requires(self, ops: Mapping[str, str]) -> tuple[str, ...]:
        return ("libtorch", "libnextn_ops")

    def fused_ops(self) -> Sequence[FusedOp]:
        from nextn.compile.targets.aoti.kernels import KERNELS

        return KERNELS

    def tools(self) -> Tools:
        compiler, chosen = find_compiler().description, choose_instruction_set(self.isa)
        settings = {"march": chosen.march, "vector_bits": chosen.vector_bits}
        return Tools(compiler, chosen.features, settings)

    def worker_environment(self, scratch: Path) -> Mapping[str, str]:
        return {
            "OMP_NUM_THREADS": "1",
            # One cache: what the compiler can do is tried out for the first graph only, 1.1 s each otherwise.
            "TORCHINDUCTOR_CACHE_DIR": str(scratch / "cache"),
            # Inductor would start a pool of compiler processes next to each of our own workers.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            # The instruction set was chosen from /proc/cpuinfo; compiling probes for it again costs 5 s a
            # graph.
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
            # Index expressions repeat; a cache for all of them saves 5 % of lowering a `round`.
            "SYMPY_CACHE_SIZE": "1000000",
        }

    def write_graph(self, job: GraphJob, traced: TracedGraph) -> Written:
        from nextn.compile.targets.aoti.shared_object import write_shared_object

        write_shared_object(traced.program, job.output, **job.tools.settings)
        return Written()


@dataclass(frozen=True)
class InstructionSet:
    """`features` are the names of /proc/cpuinfo; `vector_bits` None leaves the choice to the compiler."""

    march: str
    vector_bits: int | None
    features: tuple[str, ...]


def choose_instruction_set(isa: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> InstructionSet:
    """The instruction set for `--isa native` or `--isa avx2` on this machine.

    An architecture level is passed to the compiler instead of `native`, so that the recorded features are
    exactly what the graphs may need. Raises UsageError where this CPU cannot run the request.
    """
    present = _cpu_features(cpuinfo)
    if platform.machine() not in ("x86_64", "AMD64"):
        if isa != "native":
            raise UsageError(f"--isa {isa} needs an x86-64 machine", found=platform.machine())
        return InstructionSet("native", None, tuple(sorted(present)))
    if isa == "native" and present.issuperset(_V4):
        extensions = tuple(name for name in _V4_EXTENSIONS if name in present)
        return InstructionSet("x86-64-v4", 512, (*_V4, *extensions))
    missing = [name for name in _V3 if name not in present]
    if missing:
        raise UsageError("compiling for cpu needs AVX2", found=f"no {', '.join(missing)}")
    return InstructionSet("x86-64-v3", 256, _V3)


def _cpu_features(cpuinfo: Path) -> set[str]:
    for line in cpuinfo.read_text().splitlines():
        label, _, value = line.partition(":")
        if label.strip() in ("flags", "Features"):
            return set(value.split())
    return set()
