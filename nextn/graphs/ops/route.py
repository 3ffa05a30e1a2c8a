"""Routing of rows to experts: by score or by token id, weighed by score either way (spec section 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.ops.operator import composite
from nextn.graphs.ops.rows import read_rows
from nextn.graphs.ops.sqrt_softplus import sqrt_softplus
from nextn.graphs.ops.topk_entries import topk_entries

WEIGHT_SUM_EPS = 1e-20


@composite("(Tensor logits, Tensor bias, int k, bool normalise, float scale) -> (Tensor, Tensor)")
def score_route(logits: Tensor, bias: Tensor, k: int, normalise: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Router logits fp32 `[T, E]` -> the k experts of largest score + bias, int64 `[T, K]`, and weights.

    bias fp32 `[E]` chooses and does not weigh; weights fp32 `[T, K]`, times `scale`, of sum 1 before that
    if `normalise`. Among equal sums the lowest index wins.
    """
    score = sqrt_softplus(logits)  # [T, E]
    index = topk_entries(score + bias, k)
    return index, _weights(score, index, normalise, scale)


@composite("(Tensor logits, Tensor ids, Tensor experts, bool normalise, float scale) -> (Tensor, Tensor)")
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
