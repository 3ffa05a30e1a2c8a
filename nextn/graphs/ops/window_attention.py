"""Multi-query attention with K = V over window rows and compressed entries, one joint softmax with sinks.

Source: docs/mathematics.md, "window_attention".
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.ops.operator import operator
from nextn.graphs.ops.rows import fp32, read_rows

MASKED_SCORE = -1e30
"""Finite, so that no row can turn into NaN; exp(-1e30 - m) is exactly 0."""


@operator(
    "(Tensor query, Tensor keys, Tensor start, Tensor count, Tensor sink, Tensor? entries, Tensor? slots, "
    "Tensor? chosen, int ratio, int capacity) -> Tensor"
)
def window_attention(
    query: Tensor,
    keys: Tensor,
    start: Tensor,
    count: Tensor,
    sink: Tensor,
    entries: Tensor | None,
    slots: Tensor | None,
    chosen: Tensor | None,
    ratio: int,
    capacity: int,
) -> Tensor:
    """Attention output before the inverse rotation, fp32 `[B, V, N, D]`.

    Args:
        query: `[B, V, N, D]`, of positions `start .. start + V - 1`; start, count: int64 `[B]`, rows from
            `count` on are padding.
        keys: and values, `[B, W - 1 + V, D]` of positions from `start - (W - 1)` on; finite before 0.
        sink: fp32 `[N]`, joins the denominator only.
        entries: None, or compressed entries `[(slots + 1) * capacity, D]` of `ratio` positions each; the
            entries of one slot are consecutive.
        slots: None without entries, or the slot of each request, int64 `[B]`.
        chosen: None if each row attends to all entries that are visible to it, or the numbers of the entries
            that each row attends to, int64 `[B, V, K]`; those not visible to it are hidden.
    """
    rows = query.shape[1]
    values = [keys[:, None]]  # [B, 1, S, D]
    visible = [_window_visible(start, rows, keys.shape[1])]
    if entries is not None:
        assert slots is not None
        complete = known_positions(start, count, rows) // ratio
        if chosen is None:
            number = torch.arange(capacity)
            exists = number < ((start + count) // ratio)[:, None]  # [B, E]
            compressed = read_rows(entries, slots[:, None] * capacity + number)
            values.append(torch.where(exists[..., None], compressed, 0)[:, None])  # [B, 1, E, D]
            visible.append(number < complete[:, :, None])  # [B, V, E]
        else:
            visible.append(chosen < complete[:, :, None])  # [B, V, K]
            compressed = read_rows(entries, slots[:, None, None] * capacity + chosen)
            values.append(torch.where(visible[1][..., None], compressed, 0))  # [B, V, K, D]
    return _attend(fp32(query), [fp32(value) for value in values], visible, sink)


def known_positions(start: Tensor, count: Tensor, rows: int) -> Tensor:
    """The number of positions that each of `rows` rows knows, int64 `[B, rows]`: its own and all before it.

    start, count: int64 `[B]`, the position of the first row and the number of real rows; padding rows know no
    more than the last real row.
    """
    return torch.minimum(start[:, None] + torch.arange(rows) + 1, (start + count)[:, None])


def _window_visible(start: Tensor, rows: int, length: int) -> Tensor:
    """Whether each of `length` keys exists and is within reach of each row: bool `[B, V, S]`."""
    reach = length - rows
    key = torch.arange(length)
    query = torch.arange(rows)[:, None]
    band = (key >= query) & (key <= query + reach)  # [V, S]
    exists = key >= reach - start[:, None, None]  # [B, 1, S]
    return band & exists


def _attend(query: Tensor, values: list[Tensor], visible: list[Tensor], sink: Tensor) -> Tensor:
    """query `[B, V, N, D]`; values `[B, 1 or V, S, D]` and their visibility `[B, V, S]`; all finite."""
    batch, rows, heads, width = query.shape
    query = query * width**-0.5
    scores = [_scores(query, value, seen) for value, seen in zip(values, visible, strict=True)]
    sinks = sink.view(1, 1, heads, 1).expand(batch, rows, heads, 1)
    weights = torch.softmax(torch.cat([*scores, sinks], dim=-1), dim=-1)  # [B, V, N, S + E + 1]
    split = scores[0].shape[-1]
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
