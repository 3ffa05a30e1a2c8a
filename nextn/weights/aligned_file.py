"""Safetensors files whose tensors are aligned for mapping, written at known offsets and atomically."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import torch

from nextn.runtime.contract.errors import ExecutionError

ALIGNMENT = 64
LARGE_ALIGNMENT = 2 * 1024 * 1024
"""Alignment of tensors of at least this size: one huge page."""

PAD_PREFIX = "__pad."

PARTIAL_SUFFIX = ".partial"

_READ_BYTES = 4 * 1024 * 1024

DTYPE_NAMES: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float32: "F32",
        torch.bfloat16: "BF16",
        torch.float16: "F16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.float8_e8m0fnu: "F8_E8M0",
    }
)


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to be written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class FilePlan:
    """The header bytes and every absolute offset of a file, known before its first byte is written."""

    header: bytes
    tensors: tuple[PlannedTensor, ...]
    """In file order: small ones first, so that few large gaps are needed."""
    offsets: Mapping[str, int]
    nbytes: int


def plan_file(tensors: Iterable[PlannedTensor]) -> FilePlan:
    """Lay out `tensors`. Gaps become `uint8` tensors named `__pad.N`, as the format allows no holes."""
    ordered = sorted(tensors, key=lambda tensor: tensor.nbytes >= LARGE_ALIGNMENT)
    entries: dict[str, dict[str, object]] = {}
    begins: dict[str, int] = {}
    end = 0
    for tensor in ordered:
        begin = _round_up(end, _alignment(tensor.nbytes))
        if begin > end:
            pad = f"{PAD_PREFIX}{len(entries) - len(begins)}"
            entries[pad] = {"dtype": "U8", "shape": [begin - end], "data_offsets": [end, begin]}
        end = begin + tensor.nbytes
        entries[tensor.name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begins[tensor.name] = begin
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}, separators=(",", ":")).encode()
    # Offsets in the header count from the data, so the data itself starts at the strictest alignment.
    strictest = max((_alignment(tensor.nbytes) for tensor in ordered), default=ALIGNMENT)
    data_start = _round_up(8 + len(text), strictest)
    header = (data_start - 8).to_bytes(8, "little") + text.ljust(data_start - 8)
    offsets = {name: data_start + begin for name, begin in begins.items()}
    return FilePlan(header, tuple(ordered), offsets, data_start + end)


class AlignedFileWriter:
    """Writes a planned file under a temporary name; the final name appears only when it is complete.

    Use as a context manager; call `begin` for each planned tensor, in any order, and `write` for its data.
    An interrupted run leaves the temporary file; the next run finds there the data already written.

    Raises:
        ExecutionError: the disk is full or another write fault; nothing is left behind.
    """

    def __init__(self, path: Path, plan: FilePlan) -> None:
        self._path = path
        self._temporary = path.with_name(path.name + PARTIAL_SUFFIX)
        self._plan = plan

    def __enter__(self) -> Self:
        try:
            self._file = open(self._temporary, "r+b" if self._temporary.exists() else "w+b")  # noqa: SIM115
            if self._file.read(len(self._plan.header)) != self._plan.header:
                self._file.truncate(0)
                self._file.seek(0)
                self._file.write(self._plan.header)
            # Gaps are never written: a hole reads as zeros.
            self._file.truncate(self._plan.nbytes)
        except OSError as error:
            self._discard()
            raise self._fault(error) from error
        return self

    def begin(self, name: str) -> None:
        """Go to the place of tensor `name`."""
        self._file.seek(self._plan.offsets[name])

    def write(self, data: bytes | memoryview) -> None:
        """Append data of the tensor last begun."""
        try:
            self._file.write(data)
        except OSError as error:
            self._discard()
            raise self._fault(error) from error

    def read(self, tensor: PlannedTensor) -> Iterator[bytes]:
        """The bytes at the place of `tensor`, in pieces."""
        self.begin(tensor.name)
        left = tensor.nbytes
        while left and (data := self._file.read(min(left, _READ_BYTES))):
            yield data
            left -= len(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if kind is None:
                os.replace(self._temporary, self._path)
                _sync_folder(self._path.parent)
        except OSError as fault:
            self._discard()
            if kind is None:
                raise self._fault(fault) from fault

    def _discard(self) -> None:
        self._temporary.unlink(missing_ok=True)
        try:
            self._file.close()
        except (AttributeError, OSError):
            # Closing flushes data that could not be written; the first fault has been reported.
            pass

    def _fault(self, error: OSError) -> ExecutionError:
        return ExecutionError(
            f"cannot write weights: {error.strerror}",
            file=self._path,
            expected=f"{self._plan.nbytes} bytes of free space" if error.errno == errno.ENOSPC else None,
        )


def take_back(path: Path) -> None:
    """Gives a finished file of `AlignedFileWriter` its temporary name again, if there is one.

    Call it for a file without a record: the next run keeps the tensors that the journal beside it lists, and
    without a journal overwrites the file, whose bytes then count as free space.
    """
    temporary = path.with_name(path.name + PARTIAL_SUFFIX)
    if temporary.exists():
        path.unlink(missing_ok=True)
    elif path.exists():
        os.replace(path, temporary)


def _alignment(nbytes: int) -> int:
    return LARGE_ALIGNMENT if nbytes >= LARGE_ALIGNMENT else ALIGNMENT


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
