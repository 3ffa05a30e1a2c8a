"""Angles of the rotary position embedding (spec section 4.1).

Ratio-0 layers, NextN among them, use the plain table of base `rope_theta`; compressed layers use base
`compress_rope_theta` with YaRN at every position and no amplitude factor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.cast import fp32


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
