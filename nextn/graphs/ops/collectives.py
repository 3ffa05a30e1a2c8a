"""The tensor-parallel joints of the graphs. Source: docs/mathematics.md, "Rows, joints, casts"."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.runtime.contract.errors import UsageError


@dataclass(frozen=True)
class Parallel:
    """The place of a graph among those that share one model: `rank` of `size`.

    A session has one rank so far (`SessionShape` refuses more), where both joints are local. Raises
    `UsageError` on values out of range.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError("no ranks", key="parallel.size", expected=">= 1", found=self.size)
        if not 0 <= self.rank < self.size:
            raise UsageError(
                "rank out of range", key="parallel.rank", expected=f"0..{self.size - 1}", found=self.rank
            )


ONE_RANK = Parallel()


def reduce_sum(partial: Tensor, parallel: Parallel) -> Tensor:
    """Sum of a partial product over ranks, any shape; on one rank `partial` itself, without a node."""
    assert parallel.size == 1, "weights are not split over ranks"
    return partial


def gather_argmax(score: Tensor, parallel: Parallel) -> Tensor:
    """Index int64 `[...]` of the largest `score [..., V]` over all ranks, the lowest on ties."""
    assert parallel.size == 1, "weights are not split over ranks"
    return torch.argmax(score, dim=-1)
