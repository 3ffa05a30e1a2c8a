"""Packed weights in memory, from any layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.packed import PackedWeight
from nextn.weights.stored_tensors import StoredTensor
from nextn.weights.tensor_reader import TensorReader

COMPUTE_DTYPES = (torch.float32, torch.bfloat16)


def load_weights(
    checkpoint: Checkpoint, packed: Sequence[PackedWeight], dtype: torch.dtype
) -> dict[str, Tensor]:
    """The packed weights in memory, bit-equal to what `pack_weights` writes.

    Args:
        checkpoint: the source.
        packed: weights to assemble, from `packed_weights(checkpoint.config, ...)`.
        dtype: compute dtype of `matrix` weights, float32 or bfloat16.

    Raises:
        CheckpointError: see `WeightReader.pieces`.
    """
    weights: dict[str, Tensor] = {}
    for weight in packed:
        values = torch.empty(weight.shape, dtype=weight.stored_dtype(dtype))
        flat, done = values.view(-1), 0
        for piece in WeightReader(checkpoint, weight, dtype).pieces():
            flat[done : done + piece.numel()] = piece
            done += piece.numel()
        weights[weight.name] = values
    return weights


class WeightReader:
    """Reads one packed weight once: its parts in storage order, each piece by piece."""

    def __init__(self, checkpoint: Checkpoint, weight: PackedWeight, dtype: torch.dtype) -> None:
        if dtype not in COMPUTE_DTYPES:
            raise ValueError(f"compute dtype must be float32 or bfloat16, not {dtype}")
        self._checkpoint = checkpoint
        self._weight = weight
        self._dtype = weight.stored_dtype(dtype)
        self.sources: list[tuple[str, str, str]] = []
        """After the last piece: file, tensor and SHA-256 of its bytes for all that was read."""

    def pieces(self) -> Iterator[Tensor]:
        """Flat values in storage order. A piece is valid until the next one is asked for.

        Raises:
            CheckpointError: a source cannot be read or holds an impossible value.
        """
        experts = self._checkpoint.config.n_routed_experts
        for part in self._weight.parts:
            encoded = self._checkpoint.tensors[part.name]
            reader = TensorReader(encoded, self._dtype)
            for piece in reader.pieces():
                if self._weight.role == "index":
                    _check_expert_range(piece, encoded.data, experts)
                yield piece
            self.sources += [self._checkpoint.source_record(part.name, *source) for source in reader.sources]


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The elements of a contiguous CPU tensor, row-major, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


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
