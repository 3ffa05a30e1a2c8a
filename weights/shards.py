"""Which files a checkpoint consists of, and every tensor their headers hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nextn.graphs.config import read_json_object
from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint_files import refuse_link_out
from nextn.weights.safetensors_header import TensorEntry, read_header

SINGLE_FILE = "model.safetensors"
INDEX_SUFFIX = ".safetensors.index.json"


@dataclass(frozen=True)
class ShardTensor:
    """A tensor under its name on disk."""

    file: Path
    entry: TensorEntry


@dataclass(frozen=True)
class Shards:
    """The union of all shard headers, by name on disk."""

    origin: Path
    """The index, or the single file: what an error about an absent tensor names."""
    tensors: dict[str, ShardTensor]
    warnings: tuple[str, ...]


def read_shards(folder: Path, wanted: Callable[[str], bool] | None = None) -> Shards:
    """Read and validate the header of every safetensors file that belongs to the checkpoint.

    An index decides which files belong; their headers decide which tensors exist.

    Args:
        folder: the checkpoint.
        wanted: if given, and the index lists names it is true of, only their files are read.

    Raises:
        CheckpointError: no safetensors file, an index that names an absent shard or tensor, several files
            without an index, a tensor in two shards, a link that leaves the folder, or an invalid header.
    """
    index = _find_index(folder)
    if index is None:
        file = _find_single_file(folder)
        only = {name: ShardTensor(file, entry) for name, entry in _read(folder, file).items()}
        return Shards(file, only, _unread_files(folder, {file.name}, file))
    listed = _read_weight_map(index)
    belonging = set(listed.values())
    chosen = {} if wanted is None else {name: shard for name, shard in listed.items() if wanted(name)}
    if chosen:
        listed = {name: shard for name, shard in listed.items() if shard in set(chosen.values())}
    tensors: dict[str, ShardTensor] = {}
    warnings: list[str] = []
    for shard_name in sorted(set(listed.values())):
        found = _read(folder, folder / shard_name, named_by=index)
        _add_shard(tensors, folder / shard_name, found)
        stray = [name for name in found if listed.get(name) != shard_name]
        if stray:
            warnings.append(
                f"{folder / shard_name}: {len(stray)} tensors are not listed there by {index.name}, "
                f"first {stray[0]}; loaded as this file's header says"
            )
    for name, shard_name in listed.items():
        if name not in tensors:
            raise CheckpointError(
                "tensor missing from its shard",
                file=folder / shard_name,
                key=name,
                expected=f"as {index.name} says",
                found="nothing",
            )
    return Shards(index, tensors, (*warnings, *_unread_files(folder, belonging, index)))


def _unread_files(folder: Path, read: set[str], origin: Path) -> tuple[str, ...]:
    names = sorted({file.name for file in folder.glob("*.safetensors")} - read)
    return tuple(f"{folder / name}: not part of {origin.name}, so not read" for name in names)


def _add_shard(tensors: dict[str, ShardTensor], file: Path, found: dict[str, TensorEntry]) -> None:
    for name, entry in found.items():
        if name in tensors:
            other = tensors[name].file.name
            raise CheckpointError(
                "tensor in two shards", file=file, key=name, expected="one shard", found=other
            )
        tensors[name] = ShardTensor(file, entry)


def _find_index(folder: Path) -> Path | None:
    standard = folder / (SINGLE_FILE + ".index.json")
    # A link to nowhere is an index that was not downloaded, not the absence of one.
    if os.path.lexists(standard):
        return standard
    candidates = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    if len(candidates) > 1:
        names = ", ".join(file.name for file in candidates)
        raise CheckpointError("several index files", file=folder, expected=standard.name, found=names)
    return candidates[0] if candidates else None


def _find_single_file(folder: Path) -> Path:
    standard = folder / SINGLE_FILE
    candidates = [standard] if standard.exists() else sorted(folder.glob("*.safetensors"))
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
    return weight_map


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
