"""Validated safetensors headers: no tensor is read before its file's header is proven sound."""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NoReturn, TypeGuard

from nextn.runtime.contract.errors import CheckpointError, NextnError
from nextn.runtime.contract.strict_json import check_depth

HEADER_BYTES_LIMIT = 32 * 1024 * 1024
"""All 145 116 tensors of the largest release in one file take 16 MB. The format itself allows 100 MB, which
parsed to objects could fill several gigabytes."""

MAXIMUM_RANK = 64

METADATA_KEY = "__metadata__"

LENGTH_BYTES = 8

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies in its file. `offset` is absolute; `dtype` is the format's own spelling."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(path: Path, error: type[NextnError] = CheckpointError) -> dict[str, TensorEntry]:
    """The tensors of a safetensors file, in file order.

    Args:
        path: the file.
        error: the class raised, so that checkpoints and artifacts keep their exit codes.

    Raises:
        NextnError: of class `error`, naming the file and, where there is one, the tensor: not a regular file,
            truncated, header longer than 32 MB or than the file, invalid JSON, a repeated name or key, an
            unknown dtype, a shape that contradicts its bytes, or data offsets that overlap, leave holes or do
            not end at the end of the file.
    """
    return _HeaderReader(path, error).read()


class _HeaderReader:
    def __init__(self, path: Path, error: type[NextnError]) -> None:
        self._path = path
        self._error = error

    def read(self) -> dict[str, TensorEntry]:
        text, data_start, data_bytes = self._read_text()
        entries = [
            (name, self._entry(name, value, data_start))
            for name, value in self._parse(text)
            if name != METADATA_KEY
        ]
        entries.sort(key=lambda item: (item[1].offset, item[1].nbytes))
        self._check_cover(entries, data_start, data_bytes)
        return dict(entries)

    def _refuse(self, message: str, expected: object, found: object, key: str | None = None) -> NoReturn:
        raise self._error(message, file=self._path, key=key, expected=expected, found=str(found)[:120])

    def _read_text(self) -> tuple[bytes, int, int]:
        """Header bytes, where the data starts, and how many data bytes the file holds."""
        try:
            # Checked before opening: opening a pipe would wait for a writer.
            status = os.stat(self._path)
            if not stat.S_ISREG(status.st_mode):
                self._refuse("cannot read tensors", "a regular file", "something else")
            with open(self._path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < LENGTH_BYTES:
                    self._refuse("truncated file", f"at least {LENGTH_BYTES} bytes", f"{size} bytes")
                (length,) = struct.unpack("<Q", file.read(LENGTH_BYTES))
                if length > HEADER_BYTES_LIMIT:
                    self._refuse("header too long", f"at most {HEADER_BYTES_LIMIT} bytes", f"{length} bytes")
                data_start = LENGTH_BYTES + length
                if data_start > size:
                    self._refuse("truncated file", f"a header of {length} bytes", f"{size} bytes in all")
                return file.read(length), data_start, size - data_start
        except OSError as error:
            self._refuse("cannot read tensors", "a readable file", error.strerror)

    def _parse(self, text: bytes) -> list[tuple[str, object]]:
        try:
            parsed: object = json.loads(text.decode("utf-8"), object_pairs_hook=_Pairs)
            check_depth(parsed)
        except (ValueError, RecursionError) as error:
            self._refuse("invalid header", "a JSON object", error)
        if not isinstance(parsed, _Pairs):
            self._refuse("invalid header", "a JSON object", type(parsed).__name__)
        seen: set[str] = set()
        for name, value in parsed:
            if name in seen:
                self._refuse("invalid header", "each tensor once", "a repeated name", key=name)
            seen.add(name)
            if name == METADATA_KEY and not _is_text_map(value):
                self._refuse("invalid header", "an object of strings", value, key=name)
        return parsed

    def _entry(self, name: str, value: object, data_start: int) -> TensorEntry:
        fields = dict(value) if isinstance(value, _Pairs) else {}
        if isinstance(value, _Pairs) and len(fields) != len(value):
            self._refuse("invalid header", "each key once", "a repeated key", key=name)
        dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            self._refuse("unknown dtype", "a safetensors dtype", dtype, key=name)
        if not _is_sizes(shape):
            self._refuse("invalid shape", "an array of sizes", shape, key=name)
        if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            self._refuse("invalid data_offsets", "[begin, end]", offsets, key=name)
        bits = prod(shape) * DTYPE_BITS[dtype]
        nbytes = offsets[1] - offsets[0]
        if bits != nbytes * 8:
            expected = f"{-(-bits // 8)} bytes for {dtype} {shape}"
            self._refuse("shape contradicts data_offsets", expected, f"{nbytes} bytes", key=name)
        return TensorEntry(dtype, tuple(shape), data_start + offsets[0], nbytes)

    def _check_cover(self, entries: list[tuple[str, TensorEntry]], data_start: int, data_bytes: int) -> None:
        end = data_start
        for name, entry in entries:
            if entry.offset != end:
                message = "overlapping tensors" if entry.offset < end else "hole between tensors"
                self._refuse(message, f"offset {end - data_start}", entry.offset - data_start, key=name)
            end += entry.nbytes
        if end - data_start != data_bytes:
            message = "truncated file" if end - data_start > data_bytes else "data after the last tensor"
            last = entries[-1][0] if entries else None
            self._refuse(message, f"{end - data_start} bytes of data", f"{data_bytes} bytes", key=last)


class _Pairs(list[tuple[str, object]]):
    """A JSON object as its list of pairs, repeated keys included."""


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    # The bounds keep the product of a shape cheap to compute.
    return (
        isinstance(value, list)
        and not isinstance(value, _Pairs)
        and len(value) <= MAXIMUM_RANK
        and all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**63 for size in value)
    )


def _is_text_map(value: object) -> bool:
    return isinstance(value, _Pairs) and all(isinstance(text, str) for _, text in value)
