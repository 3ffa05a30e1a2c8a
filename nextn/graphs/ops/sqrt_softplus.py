"""sqrt(softplus(x)) from operations every lowering has (design section 4)."""

from __future__ import annotations

import torch
from torch import Tensor


def sqrt_softplus(x: Tensor) -> Tensor:
    """fp32, any shape. The compensated log1p keeps the tail: the plain form is 0 below -16.6."""
    e = torch.exp(-torch.abs(x))
    u = 1.0 + e
    rounded = u - 1.0
    exact = rounded == 0.0
    log1p = torch.where(exact, e, torch.log(u) * (e / torch.where(exact, 1.0, rounded)))
    return torch.sqrt(torch.clamp(x, min=0.0) + log1p)
