"""RMS normalisation over the last axis, fp32 inside. Source: docs/mathematics.md, "Norms"."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nextn.graphs.ops.operator import operator
from nextn.graphs.ops.rows import cast, fp32


@operator("(Tensor x, float eps) -> Tensor")
def unit_rms(x: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps)` over the last axis, fp32, no learned weight."""
    wide = fp32(x)
    return wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)


@operator("(Tensor x, Tensor weight, float eps, ScalarType dtype) -> Tensor")
def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`weight * x / rms(x)` over the last axis, weight fp32, result in `dtype`."""
    return cast(unit_rms(x, eps) * weight, dtype)


class RMSNorm(nn.Module):
    """`rms_norm` with a weight `[width]` of its own, result in `out_dtype`."""

    def __init__(self, width: int, eps: float, out_dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.out_dtype = out_dtype
        self.weight: Tensor
        self.register_buffer("weight", torch.ones(width, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, self.out_dtype)
