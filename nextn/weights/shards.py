"""The files that belong to a checkpoint, every tensor in their headers, and where links may lead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint_files import files_of, refuse_link_out
from nextn.weights.json_fields import read_json_object
from nextn.weights.original_names import is_draft_name, is_original_name, original_name
from nextn.weights.safetensors_header import TensorEntry, read_header

SINGLE_FILE = "model.safetensors"
INDEX_SUFFIX = ".safetensors.index.json"

_COMPARED_BYTES = 1 << 22


@dataclass(frozen=True)
class ShardTensor:
    """A tensor under its name on disk."""

    file: Path
    entry: TensorEntry


@dataclass(frozen=True)
class Shards:
    """The union of all shard headers, by name on disk."""

    origin: Path
    """The index, or the single file; an error about an absent tensor names it."""
    tensors: dict[str, ShardTensor]
    warnings: tuple[str, ...]
    draft_fault: CheckpointError | None = None
    """The fault that kept tensors of the draft, which the index lists, from being read."""
    unread_draft: str | None = None
    """A sentence about a file that was not read although it has, or may have, tensors of the draft."""


def read_shards(folder: Path, wanted: Callable[[str], bool] | None = None) -> Shards:
    """Read and validate the header of every safetensors file that belongs to the checkpoint.

    The files of the index belong, and files whose tensors the index omits; the headers decide which tensors
    exist.

    Args:
        folder: the checkpoint.
        wanted: if given, and true of names that the index lists, only the files of those names are read.

    Raises:
        CheckpointError: no safetensors file, an index that names an absent shard or tensor of the Target,
            several files without an index, a tensor with two values in shards of which the index lists
            neither, a link that leaves the folder, or an
            invalid header.
    """
    index = _find_index(folder)
    if index is None:
        file = _find_single_file(folder)
        reader = _ShardReader(folder, file)
        reader.add(file, _read(folder, file))
        reader.read_unlisted({file.name}, reader.tensors, wanted)
        return reader.shards()
    listed = _read_weight_map(index)
    reader = _ShardReader(folder, index)
    chosen = {} if wanted is None else {name: shard for name, shard in listed.items() if wanted(name)}
    belonging, reading = set(listed.values()), listed
    if chosen:
        reading = {name: shard for name, shard in listed.items() if shard in set(chosen.values())}
    elif wanted is not None:
        # If an unlisted file holds the wanted tensors, the listed files need not be there.
        reader.read_unlisted(belonging, listed, wanted)
        if reader.tensors:
            return reader.shards()
        reader = _ShardReader(folder, index)
    reader.read_listed(reading)
    reader.read_unlisted(belonging, listed, wanted)
    return reader.shards()


class _ShardReader:
    """Collects the tensors of one folder's files, and warnings about the files.

    Args:
        folder: the checkpoint.
        origin: see `Shards`.
    """

    def __init__(self, folder: Path, origin: Path) -> None:
        self.tensors: dict[str, ShardTensor] = {}
        self._folder = folder
        self._origin = origin
        self._warnings: list[str] = []
        self._draft_fault: CheckpointError | None = None
        self._unread_draft: str | None = None

    def shards(self) -> Shards:
        return Shards(
            self._origin, self.tensors, tuple(self._warnings), self._draft_fault, self._unread_draft
        )

    def add(self, file: Path, found: Mapping[str, TensorEntry]) -> None:
        for name, entry in found.items():
            if name in self.tensors:
                other = self.tensors[name].file.name
                raise CheckpointError(
                    "tensor in two shards", file=file, key=name, expected="one shard", found=other
                )
            self.tensors[name] = ShardTensor(file, entry)

    def read_listed(self, listed: Mapping[str, str]) -> None:
        """The shards of an index, which decides between copies.

        A shard that cannot be read is left out if it holds nothing but tensors of the draft.
        """
        by_shard: dict[str, list[str]] = {}
        for name, shard in listed.items():
            by_shard.setdefault(shard, []).append(name)
        unreadable = set()
        others: list[tuple[Path, dict[str, TensorEntry]]] = []
        for shard in sorted(by_shard):
            file = self._folder / shard
            try:
                found = _read(self._folder, file, named_by=self._origin)
            except CheckpointError as error:
                self._tolerate(error, by_shard[shard])
                unreadable.add(shard)
                continue
            self.add(file, {name: entry for name, entry in found.items() if listed.get(name) == shard})
            others.append((file, {name: entry for name, entry in found.items() if listed.get(name) != shard}))
        for file, found in others:
            self._add_stray(file, found, listed)
        for name, shard in listed.items():
            if name not in self.tensors and shard not in unreadable:
                fault = CheckpointError(
                    "tensor missing from its shard",
                    file=self._folder / shard,
                    key=name,
                    expected=f"as {self._origin.name} says",
                    found="nothing",
                )
                self._tolerate(fault, [name])

    def _add_stray(self, file: Path, found: Mapping[str, TensorEntry], listed: Mapping[str, str]) -> None:
        """What a header holds and the index does not list there, unless it is a copy of what was read."""
        stray = {}
        for name, entry in found.items():
            other = self.tensors.get(name)
            if other is None:
                stray[name] = entry
            elif name not in listed and not _same_tensor(ShardTensor(file, entry), other):
                raise CheckpointError(
                    "tensor in two shards, with different values, and the index lists neither",
                    file=file,
                    key=name,
                    expected="one shard",
                    found=other.file.name,
                )
        self.add(file, stray)
        if stray:
            self._warnings.append(
                f"{file}: {len(stray)} tensors are not listed there by {self._origin.name}, "
                f"first {next(iter(stray))}; loaded as this file's header says"
            )

    def _tolerate(self, error: CheckpointError, names: Iterable[str]) -> None:
        """Keeps the fault for sessions that draft; raises it if the Target is affected."""
        if not all(map(is_draft_name, names)):
            raise error
        self._draft_fault = self._draft_fault or error

    def read_unlisted(
        self, belonging: Set[str], listed: Iterable[str], wanted: Callable[[str], bool] | None
    ) -> None:
        """The files beside those that belong: loads tensors the index omits, not those it lists elsewhere.

        Exporters write a draft to a file of its own and forget it in the index.
        """
        files = [file for file in files_of(self._folder, "*.safetensors") if file.name not in belonging]
        taken = {original_name(name) for name in (*listed, *self.tensors)} if files else set()
        for file in files:
            left_out = f"{file}: not part of {self._origin.name}, so not read"
            try:
                found = _read(self._folder, file)
            except CheckpointError as error:
                self._warnings.append(f"{left_out}: {error}")
                self._unread_draft = f"{file.name}, which {self._origin.name} does not list, cannot be read"
                continue
            names = {original_name(name) for name in found}
            repeated = sorted(names & taken)
            is_wanted = wanted is None or any(map(wanted, found))
            if found and is_wanted and not repeated and all(map(is_original_name, names)):
                self.add(file, found)
                taken |= names
                self._warnings.append(
                    f"{file}: not part of {self._origin.name}; its {len(found)} tensors are nowhere else, "
                    "so they are loaded"
                )
                continue
            self._warnings.append(f"{left_out}: it repeats {repeated[0]}" if repeated else left_out)
            if any(map(is_draft_name, found)):
                self._unread_draft = f"{file.name}, which is not part of {self._origin.name}, was not read"


def _same_tensor(one: ShardTensor, other: ShardTensor) -> bool:
    """Whether two tensors have the same dtype, shape and bytes; reads both."""
    if (one.entry.dtype, one.entry.shape) != (other.entry.dtype, other.entry.shape):
        return False
    with open(one.file, "rb") as first, open(other.file, "rb") as second:
        first.seek(one.entry.offset)
        second.seek(other.entry.offset)
        left = one.entry.nbytes
        while left > 0:
            size = min(left, _COMPARED_BYTES)
            if first.read(size) != second.read(size):
                return False
            left -= size
    return True


def _find_index(folder: Path) -> Path | None:
    standard = folder / (SINGLE_FILE + ".index.json")
    # A dangling link is an index that was not downloaded, not the absence of one.
    if os.path.lexists(standard):
        return standard
    candidates = files_of(folder, f"*{INDEX_SUFFIX}")
    if len(candidates) > 1:
        names = ", ".join(file.name for file in candidates)
        raise CheckpointError("several index files", file=folder, expected=standard.name, found=names)
    return candidates[0] if candidates else None


def _find_single_file(folder: Path) -> Path:
    standard = folder / SINGLE_FILE
    candidates = [standard] if standard.exists() else files_of(folder, "*.safetensors")
    if len(candidates) == 1:
        return candidates[0]
    found = f"{len(candidates)} safetensors files" if candidates else "no safetensors file"
    raise CheckpointError(
        "cannot tell which tensors belong to the checkpoint",
        file=folder,
        expected=f"{SINGLE_FILE} or an index",
        found=found,
    )


def _read_weight_map(index: Path) -> dict[str, str]:
    refuse_link_out(index.parent, index)
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            "invalid index", file=index, key="weight_map", expected="an object of tensor names and shards"
        )
    for name, shard_name in weight_map.items():
        if not _is_shard_name(shard_name):
            raise CheckpointError(
                "invalid index",
                file=index,
                key=name,
                expected="a .safetensors file in the folder",
                found=shard_name,
            )
    # `./a.safetensors` is the file a.safetensors.
    return {name: PurePosixPath(shard).as_posix() for name, shard in weight_map.items()}


def _is_shard_name(value: object) -> bool:
    if not isinstance(value, str) or not value.endswith(".safetensors"):
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts


def _read(folder: Path, file: Path, named_by: Path | None = None) -> dict[str, TensorEntry]:
    try:
        file.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            "missing shard", file=named_by or folder, expected=file.name, found="no such file"
        ) from error
    refuse_link_out(folder, file)
    return read_header(file)
