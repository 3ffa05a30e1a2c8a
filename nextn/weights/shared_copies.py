"""A draft's own embedding and LM head. NextN shares the Target's, so that copies must equal them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nextn.graphs.config import ModelConfig
from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.encoded_tensors import EncodedTensor, TensorEncoder
from nextn.weights.packed import iterate_packed_weights
from nextn.weights.quantisation_metadata import QuantisationMetadata
from nextn.weights.stored_tensors import StoredTensor
from nextn.weights.tensor_reader import TensorReader


@dataclass(frozen=True)
class SharedCopies:
    """Copies of tensors of the Target in the folder that the draft comes from.

    `tensors` are under the Target's names (`embed.weight`, `head.weight`, and their scales); `metadata` and
    `origin` are those of the folder.
    """

    tensors: Mapping[str, StoredTensor]
    metadata: QuantisationMetadata
    origin: Path

    def refuse_others(self, config: ModelConfig, target: Mapping[str, EncodedTensor]) -> None:
        """Reads every copy and the Target's tensor; raises CheckpointError if their values differ.

        Two floating-point dtypes are compared in the narrower one.
        """
        for weight in iterate_packed_weights(config, with_nextn=False):
            stored = self.tensors.get(weight.name)
            if stored is None:
                continue
            own = target[weight.name]
            if stored.shape != own.data.shape or not _equal(self._encoded(weight.name, config), own):
                raise CheckpointError(
                    f"the draft has another {weight.name}, but NextN shares it with the Target; "
                    "use a draft made for this Target, or --speculative-num-steps 0",
                    file=stored.file,
                    key=stored.name,
                    expected=f"the values of {own.data.name} in {own.data.file.name}",
                    found=f"{stored.dtype} {list(stored.shape)} with others",
                )

    def _encoded(self, name: str, config: ModelConfig) -> EncodedTensor:
        [weight] = [one for one in iterate_packed_weights(config, with_nextn=False) if one.name == name]
        return TensorEncoder(self.tensors, self.metadata, self.origin).encode(weight, weight.parts[0])


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
