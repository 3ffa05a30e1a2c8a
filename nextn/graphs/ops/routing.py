"""Routing of rows to experts, by score or by token id; either way the scores are the weights.

Source: docs/mathematics.md, "Mixture of experts".
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.ops.operator import operator
from nextn.graphs.ops.rows import read_rows
from nextn.graphs.ops.topk_entries import topk_entries

WEIGHT_SUM_EPS = 1e-20


@operator("(Tensor logits, Tensor bias, int k, bool normalise, float scale) -> (Tensor, Tensor)")
def score_route(logits: Tensor, bias: Tensor, k: int, normalise: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Router logits fp32 `[T, E]` -> the k experts of largest score + bias, int64 `[T, K]`, and weights.

    bias fp32 `[E]` chooses and does not weigh; weights fp32 `[T, K]`, times `scale`, of sum 1 before that
    if `normalise`. Among equal sums the lowest index wins.
    """
    score = sqrt_softplus(logits)  # [T, E]
    index = topk_entries(score + bias, k)
    return index, _weights(score, index, normalise, scale)


@operator("(Tensor logits, Tensor ids, Tensor experts, bool normalise, float scale) -> (Tensor, Tensor)")
def hash_route(
    logits: Tensor, ids: Tensor, experts: Tensor, normalise: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """As `score_route`, by the row of `experts [vocab, K]` that `ids [T]` names, both int64."""
    score = sqrt_softplus(logits)  # [T, E]
    index = read_rows(experts, ids)  # [T, K]
    return index, _weights(score, index, normalise, scale)


def _weights(score: Tensor, index: Tensor, normalise: bool, scale: float) -> Tensor:
    weight = torch.gather(score, 1, index)
    if normalise:
        weight = weight / (weight.sum(-1, keepdim=True) + WEIGHT_SUM_EPS)
    return weight * scale


def sqrt_softplus(x: Tensor) -> Tensor:
    """sqrt(softplus(x)), fp32, any shape, from operations that every target has.

    The compensated log1p keeps the tail, where the naive formula gives 0 below -16.6.
    """
    e = torch.exp(-torch.abs(x))
    u = 1.0 + e
    rounded = u - 1.0
    exact = rounded == 0.0
    log1p = torch.where(exact, e, torch.log(u) * (e / torch.where(exact, 1.0, rounded)))
    return torch.sqrt(torch.clamp(x, min=0.0) + log1p)
