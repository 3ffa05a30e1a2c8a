"""RMS normalisation over the last axis, fp32 inside (spec section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.ops.cast import cast, fp32
from nextn.graphs.ops.operator import composite


@composite("(Tensor x, float eps) -> Tensor")
def unit_rms(x: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps)` over the last axis, fp32, no learned weight."""
    wide = fp32(x)
    return wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)


@composite("(Tensor x, Tensor weight, float eps, ScalarType dtype) -> Tensor")
def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`weight * x / rms(x)` over the last axis, weight fp32, result in `dtype`."""
    return cast(unit_rms(x, eps) * weight, dtype)
