"""`npu_dynamic_quant` and `npu_quant_matmul`: rows quantised as they come, times int8 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.ascend.fused_ops.fused_op import Form, first_fault
from nextn.graphs.ops.rows import cast

_LONGEST_AXIS = 65536
_BFLOAT16 = 15
"""torch's own number of the dtype, as torch_npu's schemas name it."""


def _why_not(x: Tensor, weight: Tensor, scales: Tensor, dtype: torch.dtype) -> str | None:
    return first_fault(
        (weight.dim() == 2, "one matrix; the scales of a stack have one axis too many"),
        (dtype == torch.bfloat16, "bfloat16, which npu_dynamic_quant takes"),
        (max(weight.shape) < _LONGEST_AXIS, f"axes below {_LONGEST_AXIS}"),
    )


def _int8_linear(x: Tensor, weight: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    rows = cast(x, dtype).reshape(-1, x.shape[-1])
    codes, steps = torch.ops.npu.npu_dynamic_quant(rows)
    y: Tensor = torch.ops.npu.npu_quant_matmul(
        codes, weight.t(), scales.flatten(), pertoken_scale=steps, output_dtype=_BFLOAT16
    )
    return y.reshape(*x.shape[:-1], -1)


FORMS = (Form("npu_quant_matmul", "int8_linear", _why_not, _int8_linear),)
