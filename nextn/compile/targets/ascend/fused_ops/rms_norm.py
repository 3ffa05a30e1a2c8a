"""`npu_rms_norm`. Its weight has the dtype of its input, so both are float32, as in the plain form."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.ascend.fused_ops.fused_op import FLOATS, Form, first_fault
from nextn.graphs.ops.rows import cast, fp32

_LARGEST_RANK = 8


def _why_not(x: Tensor, *_: object) -> str | None:
    return first_fault(
        (2 <= x.dim() <= _LARGEST_RANK, f"rank 2 to {_LARGEST_RANK}"),
        (x.dtype in (torch.float32, torch.bfloat16), FLOATS),
    )


def _unit_rms(x: Tensor, eps: float) -> Tensor:
    return _normalised(x, torch.ones(x.shape[-1]), eps)


def _rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return cast(_normalised(x, weight, eps), dtype)


def _normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y: Tensor = torch.ops.npu.npu_rms_norm(fp32(x), weight, eps)[0]
    return y


FORMS = (
    Form("npu_rms_norm", "unit_rms", _why_not, _unit_rms),
    Form("npu_rms_norm", "rms_norm", _why_not, _rms_norm),
)
