"""Finds and loads libnextn, and turns its statuses into exceptions."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from functools import cache
from pathlib import Path

import nextn.runtime
from nextn.runtime.bindings import abi
from nextn.runtime.contract.errors import ArtifactError, ExecutionError, NextnError, UsageError
from nextn.runtime.contract.version import VERSION

LIBRARY_VARIABLE = "NEXTN_LIBRARY"
"""Debug override: path of the libnextn to load instead of the packaged one."""

LIBRARY_FILE = "libnextn.so"


def find_library() -> Path:
    """Path of libnextn. Raises ExecutionError if it is not installed."""
    override = os.environ.get(LIBRARY_VARIABLE)
    if override:
        return Path(override)
    # An editable install keeps sources and built files in different folders of one package path.
    for folder in nextn.runtime.__path__:
        candidate = Path(folder) / "lib" / LIBRARY_FILE
        if candidate.is_file():
            return candidate
    raise ExecutionError("libnextn is not installed; reinstall the nextn package", file=LIBRARY_FILE)


def find_torch_library() -> Path | None:
    """libtorch_cpu of an installed torch package, found without importing torch; None if there is none."""
    specification = importlib.util.find_spec("torch")
    if specification is None or specification.origin is None:
        return None
    library = Path(specification.origin).parent / "lib" / "libtorch_cpu.so"
    return library if library.is_file() else None


@cache
def load_library() -> ctypes.CDLL:
    """The process's libnextn with prototypes declared. Raises ExecutionError if it cannot be used."""
    path = find_library()
    try:
        library = ctypes.CDLL(str(path))
        abi.declare(library)
    except (OSError, AttributeError) as error:
        raise ExecutionError(f"cannot load libnextn: {error}", file=path) from error
    found = text(library.nextn_version())
    if found != VERSION:
        raise ExecutionError("libnextn is of another version", file=path, expected=VERSION, found=found)
    return library


def text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def status_error(status: int, message: str) -> NextnError:
    """The exception for a non-zero `nextn_status`."""
    kinds: dict[int, type[NextnError]] = {abi.Status.USAGE: UsageError, abi.Status.ARTIFACT: ArtifactError}
    return kinds.get(status, ExecutionError)(message or f"libnextn failed with status {status}")
