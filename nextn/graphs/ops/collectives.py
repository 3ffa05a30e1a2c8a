"""Tensor-parallel joints of the graphs; at world size 1 both are the identity."""

from __future__ import annotations

import torch
from torch import Tensor


def reduce_sum(partial: Tensor) -> Tensor:
    """Sum of a partial product over ranks, any shape."""
    return partial


def gather_argmax(score: Tensor) -> Tensor:
    """Index int64 `[...]` of the largest `score [..., V]` over all ranks, the lowest on ties."""
    return torch.argmax(score, dim=-1)
