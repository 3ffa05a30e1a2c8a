"""Multi-query attention with K = V over window rows and compressed entries, one joint softmax with sinks."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.ops.cast import fp32

MASKED_SCORE = -1e30
"""Finite, so that no row can turn into NaN; exp(-1e30 - m) is exactly 0."""


def window_attention(
    query: Tensor,
    keys: Tensor,
    keys_visible: Tensor,
    entries: Tensor | None,
    entries_visible: Tensor | None,
    sink: Tensor,
) -> Tensor:
    """Attention output before the inverse rotation, fp32 `[B, V, N, D]` (spec section 4, steps 6-8).

    query `[B, V, N, D]`; keys `[B, S, D]` (= values, shared by the V rows), keys_visible bool
    `[B, V, S]`; entries `[B, E, D]` shared by the rows or `[B, V, E, D]` chosen per row, with
    entries_visible bool `[B, V, E]`; sink fp32 `[N]` joins the denominator only. Hidden rows must be finite.
    """
    scale = query.shape[-1] ** -0.5
    q = fp32(query) * scale
    window = fp32(keys)[:, None]  # [B, 1, S, D]
    scores = [_scores(q, window, keys_visible)]
    values = [window]
    if entries is not None and entries_visible is not None:
        compressed = fp32(entries)
        if compressed.dim() == 3:
            compressed = compressed[:, None]  # [B, 1, E, D]
        scores.append(_scores(q, compressed, entries_visible))
        values.append(compressed)
    batch, rows, heads, _ = q.shape
    sinks = sink.view(1, 1, heads, 1).expand(batch, rows, heads, 1)
    weights = torch.softmax(torch.cat([*scores, sinks], dim=-1), dim=-1)  # [B, V, N, S + E + 1]
    split = keys.shape[1]
    output = _mix(weights[..., :split], values[0])
    if len(values) == 2:
        output = output + _mix(weights[..., split:-1], values[1])
    return output


def _scores(q: Tensor, rows: Tensor, visible: Tensor) -> Tensor:
    """q `[B, V, N, D]`, rows `[B, 1 or V, S, D]` -> masked scores `[B, V, N, S]`."""
    if rows.shape[1] == 1:
        batch, width, heads, depth = q.shape
        flat = torch.bmm(q.view(batch, width * heads, depth), rows[:, 0].transpose(1, 2))
        scores = flat.view(batch, width, heads, -1)
    else:
        scores = torch.matmul(q, rows.transpose(2, 3))
    return torch.where(visible[:, :, None, :], scores, MASKED_SCORE)


def _mix(weights: Tensor, rows: Tensor) -> Tensor:
    """weights `[B, V, N, S]`, rows `[B, 1 or V, S, D]` -> `[B, V, N, D]`."""
    if rows.shape[1] == 1:
        batch, width, heads, length = weights.shape
        flat = torch.bmm(weights.reshape(batch, width * heads, length), rows[:, 0])
        return flat.view(batch, width, heads, -1)
    return torch.matmul(weights, rows)
