"""The activation of every expert (spec section 6)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from nextn.graphs.ops.cast import fp32
from nextn.graphs.ops.operator import composite


@composite("(Tensor gate_up, float limit) -> Tensor")
def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """`gate_up [..., 2I]`, gate half first: fp32 `[..., I]`; the gate is clamped from above only."""
    gate, up = fp32(gate_up).chunk(2, dim=-1)
    return functional.silu(torch.clamp(gate, max=limit)) * torch.clamp(up, -limit, limit)
