"""Pooling of consecutive positions into compressed entries. Source: docs/mathematics.md, "Compressor"."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from nextn.graphs.ops.norms import rms_norm
from nextn.graphs.ops.operator import operator
from nextn.graphs.ops.rope import apply_rope
from nextn.graphs.ops.rows import fp32, read_rows

EMPTY_GATE = -1e30
"""Gate of the slots before position 0; finite, its softmax weight is exactly 0."""


@operator(
    "(Tensor x, Tensor weight, Tensor bias, Tensor norm, Tensor earlier, Tensor start, Tensor count, "
    "Tensor cos, Tensor sin, int ratio, float eps) -> (Tensor, Tensor)"
)
def compress(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: Tensor,
    earlier: Tensor,
    start: Tensor,
    count: Tensor,
    cos: Tensor,
    sin: Tensor,
    ratio: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Ring rows of a window's positions `[B, V, 2cD]`, and its candidate blocks as entries `[B, J, D]`, fp32.

    Args:
        x: `[B, V, H]`, of positions `start .. start + V - 1`; start, count: int64 `[B]`, rows from `count`
            on are padding. Blocks `start // ratio + 0 .. J - 1` that they do not complete mean nothing.
        weight: fp32 `[2cD, H]`, value channels before gate channels; bias of the gates fp32 `[ratio, cD]`.
        norm: fp32 `[D]`, and its `eps`.
        earlier: ring rows `[B, span - 1, 2cD]` of the positions before `start`, finite before position 0.
        cos, sin: of the entries, `[B, J, R / 2]`.
    """
    rows, width = x.shape[1], norm.shape[0]
    position = start[:, None] + torch.arange(rows)
    value, gate = functional.linear(fp32(x), weight).chunk(2, dim=-1)  # [B, V, cD]
    own = torch.cat([value, gate + read_rows(bias, position % ratio)], dim=-1)
    context = torch.cat([earlier, own], dim=1)  # [B, span - 1 + V, 2cD]
    block = start[:, None] // ratio + torch.arange(cos.shape[1])  # [B, J]
    pooled = _pool(context, block, start, ratio, width)
    return own, apply_rope(rms_norm(pooled, norm, eps, torch.float32), cos, sin)


def _pool(context: Tensor, block: Tensor, start: Tensor, ratio: int, width: int) -> Tensor:
    """Gated mean of each block's positions: context `[B, P, 2cD]`, block `[B, J]` -> `[B, J, D]`."""
    batch, length, channels = context.shape
    span = channels // (2 * width) * ratio
    first = (block + 1) * ratio - span  # [B, J], position of the oldest pooled row
    position = first[:, :, None] + torch.arange(span)  # [B, J, span]
    offset = torch.clamp(position - (start - (span - 1))[:, None, None], max=length - 1)
    row = torch.arange(batch)[:, None, None] * length + offset
    value, gate = read_rows(context.flatten(0, 1), row).chunk(2, dim=-1)  # [B, J, span, cD]
    value, gate = _overlapped(value, ratio, width), _overlapped(gate, ratio, width)  # [B, J, span, D]
    gate = torch.where((position >= 0)[..., None], gate, EMPTY_GATE)
    return (value * torch.softmax(gate, dim=2)).sum(2)


def _overlapped(channels: Tensor, ratio: int, width: int) -> Tensor:
    """C4: the previous block gives its A half, the own block its B half."""
    if channels.shape[2] == ratio:
        return channels
    previous, own = channels.split(ratio, dim=2)
    return torch.cat([previous[..., :width], own[..., width:]], dim=2)
