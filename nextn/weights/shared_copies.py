"""A draft's own embedding and LM head. NextN shares the Target's, so that copies must equal them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.encoded_tensors import EncodedTensor, TensorEncoder
from nextn.weights.packed import iterate_packed_weights
from nextn.weights.tensor_reader import TensorReader


def refuse_other_copies(checkpoint: Checkpoint) -> None:
    """Reads every copy and the Target's tensor; raises CheckpointError if their values differ.

    Two floating-point dtypes are compared in the narrower one.
    """
    copies = checkpoint.shared_copies
    encoder = TensorEncoder(copies.tensors, copies.metadata, copies.origin)
    for weight in iterate_packed_weights(checkpoint.config, with_nextn=False):
        stored = copies.tensors.get(weight.name)
        if stored is None:
            continue
        own = checkpoint.tensors[weight.name]
        if stored.shape != own.data.shape or not _equal(encoder.encode(weight, weight.parts[0]), own):
            raise CheckpointError(
                f"the draft has another {weight.name}, but NextN shares it with the Target; "
                "use a draft made for this Target, or --speculative-num-steps 0",
                file=stored.file,
                key=stored.name,
                expected=f"the values of {own.data.name} in {own.data.file.name}",
                found=f"{stored.dtype} {list(stored.shape)} with others",
            )


def _equal(copy: EncodedTensor, own: EncodedTensor) -> bool:
    if copy.encoding == own.encoding == "plain" and copy.data.dtype == own.data.dtype:
        return all(map(torch.equal, _bytes(copy), _bytes(own)))
    both_exact = "BF16" not in (copy.data.dtype, own.data.dtype)
    dtype = torch.float32 if both_exact else torch.bfloat16
    return all(map(torch.equal, _rechunked(copy, dtype), _rechunked(own, dtype)))


def _bytes(tensor: EncodedTensor) -> Iterator[Tensor]:
    return TensorReader(tensor, torch.float32).codes()


def _rechunked(tensor: EncodedTensor, dtype: torch.dtype, size: int = 1 << 20) -> Iterator[Tensor]:
    """The values in pieces of one size, whatever the size of those that reading gives."""
    held = torch.empty(0, dtype=dtype)
    for piece in TensorReader(tensor, dtype).pieces():
        held = torch.cat([held, piece])
        while len(held) >= size:
            yield held[:size]
            held = held[size:]
    yield held
