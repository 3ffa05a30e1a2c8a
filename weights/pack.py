"""Packing a checkpoint into the one weights file of an artifact, and mapping that file."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from nextn.runtime.contract.errors import ArtifactError
from nextn.weights.aligned_file import (
    DTYPE_NAMES,
    PAD_PREFIX,
    AlignedFileWriter,
    FilePlan,
    PlannedTensor,
    plan_file,
)
from nextn.weights.assemble import WeightReader, tensor_bytes
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.packed import PackedWeight, Role
from nextn.weights.safetensors_header import TensorEntry, read_header

Progress = Callable[[str, int, int], None]
"""Called after each tensor with its name, the bytes written so far and the bytes in all."""

NO_EXTRA: Mapping[str, Tensor] = MappingProxyType({})

_EXTRA_ROLES: Mapping[torch.dtype, Role] = MappingProxyType({torch.float32: "float32", torch.int64: "index"})


def pack_weights(
    checkpoint: Checkpoint,
    packed: Sequence[PackedWeight],
    dtype: torch.dtype,
    out_path: Path,
    extra: Mapping[str, Tensor] = NO_EXTRA,
    progress: Progress | None = None,
) -> list[dict[str, object]]:
    """Write one aligned safetensors file, holding one source tensor at a time.

    Args:
        checkpoint: the source.
        packed: weights to write, from `packed_weights(checkpoint.config, ...)`.
        dtype: compute dtype of `matrix` weights, float32 or bfloat16.
        out_path: the file; it appears only when complete.
        extra: constants without a source, float32 or int64.
        progress: called after each tensor.

    Returns:
        One manifest entry per tensor in file order: name, role, dtype, shape, storage, scales, source
        (file, tensor and SHA-256 of its bytes, for each part), offset and nbytes in the file, sha256.

    Raises:
        CheckpointError: a source cannot be read or holds an impossible value.
        ExecutionError: the disk is full or another write fault.
    """
    weights = {weight.name: weight for weight in packed}
    planned = [PlannedTensor(item.name, item.stored_dtype(dtype), item.shape) for item in packed]
    planned += [PlannedTensor(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in extra.items()]
    plan = plan_file(planned)
    entries: list[dict[str, object]] = []
    with AlignedFileWriter(out_path, plan) as writer:
        for tensor in plan.tensors:
            writer.begin(tensor.name)
            digest = hashlib.sha256()
            if tensor.name in extra:
                role = _EXTRA_ROLES[tensor.dtype]
                pieces, reader = iter([extra[tensor.name]]), None
            else:
                role = weights[tensor.name].role
                reader = WeightReader(checkpoint, weights[tensor.name], dtype)
                pieces = reader.pieces()
            for piece in pieces:
                data = tensor_bytes(piece)
                digest.update(data)
                writer.write(data)
            source = [] if reader is None else reader.sources
            entries.append(_manifest_entry(tensor, role, plan, source, digest.hexdigest()))
            if progress is not None:
                progress(tensor.name, plan.offsets[tensor.name] + tensor.nbytes, plan.nbytes)
    return entries


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


def _manifest_entry(
    tensor: PlannedTensor, role: Role, plan: FilePlan, source: list[tuple[str, str, str]], sha256: str
) -> dict[str, object]:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
    return {
        "name": tensor.name,
        "role": role,
        "dtype": dtype,
        "shape": shape,
        "storage": {"layout": "plain", "dtype": dtype, "shape": shape},
        "scales": None,
        "source": source,
        "offset": plan.offsets[tensor.name],
        "nbytes": tensor.nbytes,
        "sha256": sha256,
    }
