"""RMS normalisation with a learned weight (spec section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nextn.graphs.ops.rms_norm import rms_norm


class RMSNorm(nn.Module):
    """`weight * x / rms(x)` over the last axis, fp32 inside, result in `out_dtype`."""

    def __init__(self, width: int, eps: float, out_dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.out_dtype = out_dtype
        self.weight: Tensor
        self.register_buffer("weight", torch.ones(width, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, self.out_dtype)
