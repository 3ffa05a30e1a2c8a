"""Assembling packed weights from stored tensors, one source tensor at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint import FLOAT_DTYPES, INDEX_DTYPES, Checkpoint
from nextn.weights.packed import PackedWeight
from nextn.weights.stored_tensors import StoredTensor

COMPUTE_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class AssembledPart:
    """One part of a packed weight, ready to store, and the source it came from."""

    source: StoredTensor
    source_sha256: str
    data: bytearray
    """The part, row-major, in the weight's stored dtype."""


def load_weights(
    checkpoint: Checkpoint, packed: Sequence[PackedWeight], dtype: torch.dtype
) -> dict[str, Tensor]:
    """The packed weights in memory, bit-equal to what `pack_weights` writes.

    Args:
        checkpoint: the source.
        packed: weights to assemble, from `packed_weights(checkpoint.config, ...)`.
        dtype: compute dtype of `matrix` weights, float32 or bfloat16.

    Raises:
        CheckpointError: see `assemble_parts`.
    """
    weights: dict[str, Tensor] = {}
    for weight in packed:
        data = bytearray().join(part.data for part in assemble_parts(checkpoint, weight, dtype))
        weights[weight.name] = torch.frombuffer(data, dtype=weight.stored_dtype(dtype)).view(weight.shape)
    return weights


def assemble_parts(
    checkpoint: Checkpoint, weight: PackedWeight, dtype: torch.dtype
) -> Iterator[AssembledPart]:
    """The parts of `weight` in storage order; only one is held at a time.

    Raises:
        CheckpointError: a source file cannot be read or shrank, or an expert index is out of range.
    """
    if dtype not in COMPUTE_DTYPES:
        raise ValueError(f"compute dtype must be float32 or bfloat16, not {dtype}")
    for part in weight.parts:
        source = checkpoint.tensors[part.name]
        data = checkpoint.read(part.name)
        digest = hashlib.sha256(data).hexdigest()
        stored = torch.frombuffer(data, dtype=_torch_dtype(source))
        if weight.role == "index":
            _check_expert_range(stored, source, checkpoint.config.n_routed_experts)
        if stored.dtype != weight.stored_dtype(dtype):
            data = tensor_bytes(stored, weight.stored_dtype(dtype))
        yield AssembledPart(source, digest, data)


def tensor_bytes(tensor: Tensor, dtype: torch.dtype) -> bytearray:
    """The elements of a CPU tensor, row-major, converted to `dtype`."""
    data = bytearray(tensor.numel() * dtype.itemsize)
    torch.frombuffer(data, dtype=dtype).copy_(tensor.reshape(-1))
    return data


def _torch_dtype(source: StoredTensor) -> torch.dtype:
    return FLOAT_DTYPES.get(source.dtype) or INDEX_DTYPES[source.dtype]


def _check_expert_range(table: Tensor, source: StoredTensor, experts: int) -> None:
    low, high = int(table.min()), int(table.max())
    if low < 0 or high >= experts:
        raise CheckpointError(
            "expert index out of range",
            file=source.file,
            key=source.name,
            expected=f"values in [0, {experts - 1}]",
            found=low if low < 0 else high,
        )
