"""Builds the stand-in libraries, once for a wheel version and these sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.cann import assembly, elf, wheel

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / "build" / "fake-cann"
CORE = "libascendcl.so"
"""Holds everything; the other libraries are empty and need this one."""

STUBS = "stubs.s"
IR_ATTRIBUTES = "ir_attributes.cpp"
COMPILE = ("g++", "-std=c++17", "-O1", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror", "-c")
OLD_STRINGS = "ge_error_text.cpp"
"""Speaks to a library of the wheel that is built for libstdc++'s old std::string."""


def _sources() -> list[Path]:
    return sorted((HERE / "runtime").glob("*.cpp"))


def _key() -> str:
    digest = hashlib.sha256(f"{wheel.version()} {platform.machine()}".encode())
    generator = (Path(module.__file__) for module in (assembly, elf, wheel))
    for path in [Path(__file__), *generator, *sorted((HERE / "runtime").iterdir())]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def _compile(source: Path, folder: Path) -> Path:
    output = folder / f"{source.stem}.o"
    # As system headers: they are not ours to mend, and full of warnings.
    includes = [part for path in wheel.include_folders() for part in ("-isystem", path)]
    includes += ["-I", HERE / "runtime"]
    new_strings = 0 if source.name == OLD_STRINGS else 1
    _run(*COMPILE, f"-D_GLIBCXX_USE_CXX11_ABI={new_strings}", *includes, source, "-o", output)
    return output


def _write_ir_attributes(folder: Path) -> Path:
    names = "".join(f'"{name}", ' for name in sorted(wheel.ir_attributes()))
    array = f"const char *const fake_cann::ir_attributes[] = {{{names}nullptr}};"
    path = folder / IR_ATTRIBUTES
    path.write_text(f'#include "ir_attributes.h"\n{array}\n')
    return path


def _link_core(folder: Path, objects: list[Path], demand: wheel.Demand) -> None:
    behaves = {name for file in objects for name in elf.defined_in_object(file)}
    launchers = demand.launchers - behaves
    zeros = (demand.linked | demand.looked_up) - behaves - launchers
    text = folder / STUBS
    text.write_text(assembly.stubs(zeros, launchers))
    _run("g++", "-shared", f"-Wl,-soname,{CORE}", text, *objects, "-o", folder / CORE)


def _link_empty(folder: Path, name: str) -> None:
    needs_core = ("-Wl,--no-as-needed", "-L", folder, "-lascendcl", "-Wl,-rpath,$ORIGIN")
    # No symbols of its own, so the loader goes on to the one it needs.
    empty = ("-nostdlib", "-x", "c", "/dev/null", "-x", "none")
    _run("gcc", "-shared", f"-Wl,-soname,{name}", *empty, *needs_core, "-o", folder / name)


def build_into(folder: Path) -> None:
    demand = wheel.read_demand()
    if CORE not in demand.libraries:
        raise RuntimeError(f"torch_npu {wheel.version()} needs no {CORE}: is it a wheel for CANN?")
    with ThreadPoolExecutor(max_workers=2) as pool:
        sources = [*_sources(), _write_ir_attributes(folder)]
        objects = list(pool.map(lambda source: _compile(source, folder), sources))
    _link_core(folder, objects, demand)
    for name in demand.libraries:
        if name != CORE:
            _link_empty(folder, name)
    for path in [*objects, folder / STUBS, folder / IR_ATTRIBUTES]:
        path.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two processes that start at once build once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def libraries() -> Path:
    """The folder with the stand-ins for the installed wheel; built if it is not there."""
    folder = CACHE / _key()
    with _locked(CACHE / "lock"):
        if folder.is_dir():
            return folder
        half_built = CACHE / "half-built"
        shutil.rmtree(half_built, ignore_errors=True)
        half_built.mkdir()
        build_into(half_built)
        os.replace(half_built, folder)
    return folder
