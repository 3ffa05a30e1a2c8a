"""Packing a checkpoint into the one weights file of an artifact, and mapping that file."""

from __future__ import annotations

import hashlib
import json
import mmap
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from nextn.runtime.contract.errors import ArtifactError, ExecutionError
from nextn.weights.aligned_file import (
    DTYPE_NAMES,
    PAD_PREFIX,
    PARTIAL_SUFFIX,
    AlignedFileWriter,
    FilePlan,
    PlannedTensor,
    plan_file,
)
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.dequantise import Encoding
from nextn.weights.pack_items import PackItem, pack_items
from nextn.weights.pack_journal import Entry, PackJournal
from nextn.weights.packed import NEXTN_PREFIX, PackedWeight
from nextn.weights.safetensors_header import TensorEntry, read_header
from nextn.weights.shared_copies import refuse_other_copies
from nextn.weights.tensor_reader import tensor_bytes

Progress = Callable[[str, int, int], None]
"""Called as data is written, with the tensor, the bytes done so far and the bytes in all."""

Finished = Callable[["PackedFile"], None]
"""Called once the file is in place; a packing that is interrupted before it returns can be continued."""

_ZEROS = bytes(64 * 1024)

NO_EXTRA: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class PackedFile:
    """A complete file, with the hashes that were taken while it was written."""

    entries: list[Entry]
    bytes: int
    header_bytes: int
    """Its length field included."""
    header_sha256: str
    body_sha256: str


def pack_weights(
    checkpoint: Checkpoint,
    packed: Sequence[PackedWeight],
    dtype: torch.dtype,
    out_path: Path,
    extra: Mapping[str, Tensor] = NO_EXTRA,
    progress: Progress | None = None,
    keep: Collection[Encoding] = (),
    finished: Finished | None = None,
) -> list[Entry]:
    """Write one aligned safetensors file, holding a few megabytes of one source tensor at a time.

    A packing that was interrupted is continued: tensors whose bytes are all there are kept.

    Args:
        checkpoint: the source.
        packed: weights to write, from `packed_weights(checkpoint.config, ...)`.
        dtype: compute dtype of `matrix` weights, float32 or bfloat16.
        out_path: the file; it appears only when complete.
        extra: constants without a source, float32 or int64.
        progress: called after each piece.
        keep: encodings whose matrices are stored as codes and scales, if all parts are encoded alike.
        finished: writes the caller's record of the file; see `take_back` for a file without a record.

    Returns:
        One manifest entry per tensor in file order: name, role, dtype, shape, storage, scales, source
        (file, tensor and SHA-256 of its bytes, for each part), offset and nbytes in the file, sha256.

    Raises:
        CheckpointError: a source cannot be read or holds an impossible value, or the draft repeats a tensor
            of the Target with other values.
        ExecutionError: the disk is too small or full, or another write fault.
    """
    if any(weight.name.startswith(NEXTN_PREFIX) for weight in packed):
        refuse_other_copies(checkpoint)
    items = {item.planned.name: item for item in pack_items(checkpoint, packed, dtype, extra, keep)}
    plan = plan_file(item.planned for item in items.values())
    _check_space(out_path, plan)
    journal = PackJournal(out_path, _made_from(checkpoint, plan))
    try:
        with AlignedFileWriter(out_path, plan) as writer:
            packing = _Packing(plan, writer, journal, progress)
            entries = [packing.entry(items[tensor.name]) for tensor in plan.tensors]
            packed_file = packing.packed_file(entries)
    except ExecutionError:
        # The partial file is gone too: on a full disk it would only be in the way.
        journal.remove()
        raise
    if finished is not None:
        finished(packed_file)
    journal.remove()
    return entries


class _Packing:
    """One run over a planned file."""

    def __init__(
        self, plan: FilePlan, writer: AlignedFileWriter, journal: PackJournal, progress: Progress | None
    ) -> None:
        self._plan = plan
        self._writer = writer
        self._journal = journal
        self._progress = progress
        self._body = hashlib.sha256()
        self._hashed = len(plan.header)

    def entry(self, item: PackItem) -> Entry:
        """Write one tensor, or find it written; its manifest entry. Takes the tensors in file order."""
        self._hash_gap(item.planned)
        kept = self._journal.finished.get(item.planned.name)
        # A constant has no source to tell it from an earlier one, and is written as quickly as hashed.
        if kept is not None and kept["source"] and self._is_written(item.planned, kept["sha256"]):
            self._report(item, item.planned.nbytes)
            return kept
        digest, done = hashlib.sha256(), 0
        self._writer.begin(item.planned.name)
        for piece in item.reader.pieces():
            data = tensor_bytes(piece)
            digest.update(data)
            self._body.update(data)
            self._writer.write(data)
            done += data.nbytes
            self._report(item, done)
        assert done == item.planned.nbytes, item.planned.name
        entry = item.manifest_entry(self._plan.offsets[item.planned.name], digest.hexdigest())
        self._journal.add(entry)
        return entry

    def packed_file(self, entries: list[Entry]) -> PackedFile:
        """The file, once every tensor has been entered."""
        header = self._plan.header
        return PackedFile(
            entries,
            self._plan.nbytes,
            len(header),
            hashlib.sha256(header).hexdigest(),
            self._body.hexdigest(),
        )

    def _hash_gap(self, tensor: PlannedTensor) -> None:
        """The zeros before a tensor are part of the body too."""
        offset = self._plan.offsets[tensor.name]
        while self._hashed < offset:
            zeros = _ZEROS[: offset - self._hashed]
            self._body.update(zeros)
            self._hashed += len(zeros)
        self._hashed += tensor.nbytes

    def _is_written(self, tensor: PlannedTensor, sha256: str) -> bool:
        """Whether the file holds the tensor whole; if so it has been hashed with the body."""
        digest, body = hashlib.sha256(), self._body.copy()
        for data in self._writer.read(tensor):
            digest.update(data)
            body.update(data)
        if digest.hexdigest() != sha256:
            return False
        self._body = body
        return True

    def _report(self, item: PackItem, done: int) -> None:
        if self._progress is not None:
            name = item.planned.name
            self._progress(name, self._plan.offsets[name] + done, self._plan.nbytes)


def _made_from(checkpoint: Checkpoint, plan: FilePlan) -> str:
    """Changes with the planned file and with any source file."""
    files = {stored.file for tensor in checkpoint.tensors.values() for stored in tensor.stored}
    status = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
    digest = hashlib.sha256(plan.header)
    digest.update(json.dumps(status).encode())
    return digest.hexdigest()


def _check_space(out_path: Path, plan: FilePlan) -> None:
    partial = out_path.with_name(out_path.name + PARTIAL_SUFFIX)
    try:
        free = shutil.disk_usage(out_path.parent).free
        # The data of an interrupted packing is there already; 512 is the unit of st_blocks.
        free += partial.stat().st_blocks * 512 if partial.exists() else 0
    except OSError as error:
        raise ExecutionError(f"cannot write weights: {error.strerror}", file=out_path) from error
    if free < plan.nbytes:
        raise ExecutionError(
            "not enough disk space for the weights",
            file=out_path,
            expected=f"{plan.nbytes} bytes",
            found=f"{free} bytes free",
        )


def read_packed_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a packed file, with absolute offsets, without its padding.

    Raises:
        ArtifactError: the file is damaged; see `read_header`.
    """
    entries = read_header(path, ArtifactError)
    return {name: entry for name, entry in entries.items() if not name.startswith(PAD_PREFIX)}


def load_packed(path: Path) -> dict[str, Tensor]:
    """The tensors of a packed file, mapped: pages are read when touched and shared between processes.

    Writing to a tensor changes this process's copy only.

    Raises:
        ArtifactError: the file is damaged or holds a dtype that packing does not write.
    """
    entries = read_packed_header(path)
    dtypes = {name: dtype for dtype, name in DTYPE_NAMES.items()}
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    tensors: dict[str, Tensor] = {}
    for name, entry in entries.items():
        dtype = dtypes.get(entry.dtype)
        if dtype is None:
            raise ArtifactError(
                "unknown dtype", file=path, key=name, expected=", ".join(dtypes), found=entry.dtype
            )
        flat = torch.frombuffer(
            mapped, dtype=dtype, count=entry.nbytes // dtype.itemsize, offset=entry.offset
        )
        tensors[name] = flat.view(entry.shape)
    return tensors
