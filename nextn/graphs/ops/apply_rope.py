"""Rotation of adjacent channel pairs (spec section 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.ops.cast import fp32
from nextn.graphs.ops.operator import composite


@composite("(Tensor x, Tensor cos, Tensor sin) -> Tensor")
def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the last `2 * cos.shape[-1]` channels of `x [..., D]`; cos, sin broadcast to `[..., R / 2]`.

    fp32 in the arithmetic, result in fp32; pass `-sin` for the inverse rotation.
    """
    width = 2 * cos.shape[-1]
    still, turning = fp32(x).split([x.shape[-1] - width, width], dim=-1)
    pairs = turning.unflatten(-1, (-1, 2))  # [..., R / 2, 2]
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([still, turned], dim=-1)
