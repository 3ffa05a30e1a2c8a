"""`npu_clipped_swiglu` with its slope 1 and bias 0, in float32 as the plain form."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.ascend.fused_ops.fused_op import Form, first_fault
from nextn.graphs.ops.rows import fp32


def _why_not(gate_up: Tensor, limit: float) -> str | None:
    return first_fault((gate_up.dim() >= 2, "rank 2 or more"), (limit > 0, "a limit above 0"))


def _clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    y: Tensor = torch.ops.npu.npu_clipped_swiglu(
        fp32(gate_up), dim=-1, alpha=1.0, limit=limit, bias=0.0, interleaved=False
    )
    return y


FORMS = (Form("npu_clipped_swiglu", "clamped_swiglu", _why_not, _clamped_swiglu),)
