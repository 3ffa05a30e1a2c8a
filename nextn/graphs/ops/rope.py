"""The rotary position embedding: its angles, and the rotation of adjacent channel pairs.

Ratio-0 layers, NextN among them, use the plain table of base `rope_theta`; compressed layers use base
`compress_rope_theta` with YaRN at every position and no amplitude factor.

Source: docs/mathematics.md, "RoPE and YaRN".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.operator import operator
from nextn.graphs.ops.rows import fp32


@operator("(Tensor x, Tensor cos, Tensor sin) -> Tensor")
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


class Rope(nn.Module):
    """Angles are `position * inverse_frequencies` in fp32, as the reference tables are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inverse_frequencies: Tensor
        self.register_buffer("inverse_frequencies", torch.zeros(width // 2, dtype=torch.float32))

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions int64 `[...]` -> cos, sin fp32 `[..., width / 2]`."""
        angles = fp32(positions)[..., None] * self.inverse_frequencies
        return torch.cos(angles), torch.sin(angles)


def inverse_frequencies(config: ModelConfig, compressed: bool) -> Tensor:
    """fp32 `[qk_rope_head_dim / 2]` of the plain or the compressed table."""
    width = config.qk_rope_head_dim
    base = config.compress_rope_theta if compressed else config.rope_theta
    plain = 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
    scaling = config.rope_scaling
    if not compressed or scaling is None:
        return plain

    def correction(rotations: float) -> float:
        turns = scaling.original_max_position / (rotations * 2 * math.pi)
        return width * math.log(turns) / (2 * math.log(base))

    low = max(math.floor(correction(scaling.beta_fast)), 0)
    high = min(math.ceil(correction(scaling.beta_slow)), width - 1)
    ramp = (torch.arange(width // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    keep = 1.0 - ramp.clamp(0.0, 1.0)
    return plain / scaling.factor * (1.0 - keep) + plain * keep
