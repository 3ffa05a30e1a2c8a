"""What ELF files need and provide, read with binutils."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def _output(*command: str | Path) -> list[str]:
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def needed_libraries(library: Path) -> list[str]:
    """The DT_NEEDED names."""
    lines = _output("readelf", "--dynamic", "--wide", library)
    return [line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line]


@dataclass(frozen=True)
class Symbol:
    name: str
    is_weak: bool


def _symbols(library: Path, which: str, *more: str) -> Iterator[Symbol]:
    for line in _output("nm", which, *more, library):
        fields = line.split()
        # ADDRESS TYPE NAME@VERSION, without an address for what is undefined.
        if len(fields) >= 2 and len(fields[-2]) == 1:
            yield Symbol(fields[-1].split("@")[0], is_weak=fields[-2] in "vVwW")


def defined_symbols(library: Path) -> set[str]:
    """Names of the dynamic symbols a library offers."""
    return {symbol.name for symbol in _symbols(library, "--dynamic", "--defined-only")}


def undefined_symbols(library: Path) -> set[str]:
    """Names of the dynamic symbols without which a library cannot be loaded."""
    symbols = _symbols(library, "--dynamic", "--undefined-only")
    return {symbol.name for symbol in symbols if not symbol.is_weak}


def defined_in_object(file: Path) -> set[str]:
    """Names of the global symbols in an object file."""
    return {symbol.name for symbol in _symbols(file, "--extern-only", "--defined-only")}


def system_libraries() -> dict[str, Path]:
    """Where the loader finds libraries, by name."""
    found: dict[str, Path] = {}
    for line in _output("/sbin/ldconfig", "-p"):
        name, arrow, path = line.partition("=>")
        if arrow:
            found.setdefault(name.split()[0], Path(path.strip()))
    return found
