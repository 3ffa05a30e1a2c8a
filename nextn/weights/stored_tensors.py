"""`StoredTensor`: the place of the bytes of an original tensor, in any layout of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.original_names import StackedExperts, original_name, stacked_experts
from nextn.weights.packed import NEXTN_PREFIX
from nextn.weights.shards import ShardTensor

# NextN shares embedding and LM head with the Target; some exporters repeat them.
_SHARED_COPIES = {f"{NEXTN_PREFIX}emb.tok_emb.": "embed.", f"{NEXTN_PREFIX}head.": "head."}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The bytes of one original tensor: a whole tensor on disk, or one matrix of a stacked one."""

    file: Path
    name: str
    """As on disk; a matrix of a stacked tensor carries its place, `name[expert][matrix]`."""
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def read(self, piece_bytes: int) -> Iterator[bytearray]:
        """The bytes in pieces; all but the last have `piece_bytes`.

        Raises:
            CheckpointError: the file cannot be read, or is shorter than it was.
        """
        done = 0
        try:
            with open(self.file, "rb", buffering=0) as file:
                file.seek(self.offset)
                while done < self.nbytes:
                    data = bytearray(min(piece_bytes, self.nbytes - done))
                    count = _fill(data, file)
                    done += count
                    if count < len(data):
                        break
                    yield data
        except OSError as error:
            raise CheckpointError(
                "cannot read tensor", file=self.file, key=self.name, found=error.strerror
            ) from error
        if done < self.nbytes:
            raise CheckpointError(
                "truncated file",
                file=self.file,
                key=self.name,
                expected=f"{self.nbytes} bytes",
                found=f"{done} bytes",
            )

    def read_all(self) -> bytearray:
        """All bytes at once: for tensors that are known to be small."""
        return next(self.read(self.nbytes), bytearray())


def _fill(data: bytearray, file: RawIOBase) -> int:
    """Read until `data` is full or the file ends; the number of bytes read."""
    view = memoryview(data)
    while view and (count := file.readinto(view)):
        view = view[count:]
    return len(data) - len(view)


def by_original_name(shard_tensors: Mapping[str, ShardTensor], experts: int) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint under its original name, stacked experts taken apart.

    Args:
        shard_tensors: by name on disk.
        experts: routed experts per layer, the first dimension a stacked tensor must have.

    Raises:
        CheckpointError: two tensors claim one original name, or a stacked tensor cannot hold its matrices.
    """
    tensors: dict[str, StoredTensor] = {}

    def add(name: str, stored: StoredTensor) -> None:
        if name in tensors:
            raise CheckpointError(
                "two tensors for one weight",
                file=stored.file,
                key=name,
                expected="one of them",
                found=f"{tensors[name].name} and {stored.name}",
            )
        tensors[name] = stored

    for disk_name, tensor in shard_tensors.items():
        stack = stacked_experts(disk_name)
        if stack is not None:
            for name, stored in _unstack(disk_name, tensor, stack, experts).items():
                add(name, stored)
            continue
        name = original_name(disk_name)
        if not name.startswith(tuple(_SHARED_COPIES)):
            add(name, _whole(disk_name, tensor))
    return tensors


def copies_of_shared(shard_tensors: Mapping[str, ShardTensor]) -> dict[str, StoredTensor]:
    """What a draft repeats of the Target, under the Target's names: `mtp.0.head.weight` as `head.weight`."""
    copies = {}
    for disk_name, tensor in shard_tensors.items():
        name = original_name(disk_name)
        for prefix, shared in _SHARED_COPIES.items():
            if name.startswith(prefix):
                copies[shared + name.removeprefix(prefix)] = _whole(disk_name, tensor)
    return copies


def _whole(disk_name: str, tensor: ShardTensor) -> StoredTensor:
    entry = tensor.entry
    return StoredTensor(tensor.file, disk_name, entry.dtype, entry.shape, entry.offset, entry.nbytes)


def _unstack(
    disk_name: str, tensor: ShardTensor, stack: StackedExperts, experts: int
) -> dict[str, StoredTensor]:
    """Each matrix of each expert is a contiguous run of the stacked tensor."""
    entry, count = tensor.entry, len(stack.matrices)
    if len(entry.shape) != 3 or entry.shape[0] != experts or entry.shape[1] % count:
        rows = "rows" if count == 1 else f"{count} x rows"
        raise CheckpointError(
            "wrong tensor shape",
            file=tensor.file,
            key=disk_name,
            expected=f"[{experts}, {rows}, columns]",
            found=list(entry.shape),
        )
    shape = (entry.shape[1] // count, entry.shape[2])
    nbytes = entry.nbytes // (experts * count)
    return {
        stack.original_name(expert, matrix): StoredTensor(
            file=tensor.file,
            name=f"{disk_name}[{expert}][{matrix}]",
            dtype=entry.dtype,
            shape=shape,
            offset=entry.offset + (expert * count + place) * nbytes,
            nbytes=nbytes,
        )
        for expert in range(experts)
        for place, matrix in enumerate(stack.matrices)
    }
