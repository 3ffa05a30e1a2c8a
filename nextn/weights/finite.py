"""Looking for values that are not numbers, in every tensor a model would use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from nextn.weights.checkpoint import Checkpoint
from nextn.weights.tensor_reader import ScaleNotFinite, TensorReader


@dataclass(frozen=True)
class NotFinite:
    """A tensor with values that are not finite."""

    file: str
    tensor: str
    nan: int
    inf: int


def find_not_finite(
    checkpoint: Checkpoint, progress: Callable[[str, int, int], None] | None = None
) -> Iterator[NotFinite]:
    """Reads and dequantises everything once; yields the tensors at fault.

    Raises:
        CheckpointError: a file cannot be read, or a quantisation is asymmetric.
    """
    total = sum(tensor.data.nbytes for tensor in checkpoint.tensors.values())
    done = 0
    for name, tensor in checkpoint.tensors.items():
        is_index = tensor.data.dtype.startswith("I") and tensor.encoding == "plain"
        nan = inf = 0
        try:
            for piece in TensorReader(tensor, torch.int64 if is_index else torch.float32).pieces():
                if not is_index and not bool(piece.isfinite().all()):
                    nan += int(piece.isnan().sum())
                    inf += int(piece.isinf().sum())
        except ScaleNotFinite as fault:
            # Values without a scale are none; the other tensors are still to be looked at.
            yield NotFinite(str(fault.file), str(fault.key), fault.nan, fault.inf)
        done += tensor.data.nbytes
        if progress is not None:
            progress(name, done, total)
        if nan or inf:
            yield NotFinite(str(tensor.data.file), tensor.data.name, nan, inf)
