"""RMS normalisation in fp32 (spec section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nextn.graphs.ops.cast import cast, fp32


class RMSNorm(nn.Module):
    """`weight * x / rms(x)` over the last axis, fp32 inside, result in `out_dtype`."""

    def __init__(self, width: int, eps: float, out_dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.out_dtype = out_dtype
        self.weight: Tensor
        self.register_buffer("weight", torch.ones(width, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return cast(unit_rms(x, self.eps) * self.weight, self.out_dtype)


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps)` over the last axis, fp32, no learned weight."""
    wide = fp32(x)
    return wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
