"""Sinkhorn normalisation as one operator: 117 small nodes in plain form, one native kernel on the CPU.

`torch.ops.nextn.nextn_sinkhorn` runs the plain form below wherever it is executed eagerly. The CPU
lowering binds it to the kernel in libnextn_ops; other lowerings decompose it into the plain form.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("nextn::nextn_sinkhorn", mutates_args=())
def sinkhorn(score: Tensor, iterations: int, eps: float) -> Tensor:
    """Mixing matrices fp32 `[T, M, M]` from `score [T, M, M]` (spec section 3.2).

    Softmax over the last axis, then columns, then rows and columns in turn, `iterations` column passes
    in all; `eps` is added to the softmax and to every sum.
    """
    return sinkhorn_plain(score, iterations, eps)


def sinkhorn_plain(score: Tensor, iterations: int, eps: float) -> Tensor:
    """The aten form."""
    comb = torch.softmax(score, dim=-1) + eps
    comb = comb / (comb.sum(1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(2, keepdim=True) + eps)
        comb = comb / (comb.sum(1, keepdim=True) + eps)
    return comb


@sinkhorn.register_fake
def _(score: Tensor, iterations: int, eps: float) -> Tensor:
    return torch.empty_like(score)
