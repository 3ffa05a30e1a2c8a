"""Which CPU instructions graphs may use, and the compiler flags that keep them to it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from nextn.runtime.contract.errors import UsageError

# Every CPU with these has the rest of the level too.
_V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# Inductor switches these on by itself wherever the CPU has them and AVX-512 was chosen.
_V4_EXTENSIONS = ("avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16")


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
