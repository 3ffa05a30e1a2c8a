"""Operators on rows: norms, rotation by position, the gated activation, and products of int8 rows.

`npu_rms_norm` has a weight of the dtype of its input, so both are float32, as in the plain operators;
`npu_clipped_swiglu` has slope 1 and bias 0, and is in float32 too. `npu_dynamic_quant` quantises rows as they
come, and `npu_quant_matmul` multiplies them by int8 weights.

`npu_rotary_mul` is called in its interleaved mode, on the channels that turn. On A2 and A3 the graph engine's
operator takes the permutation of channels as a matrix of signs, and without it would pair the halves of a row
instead; on the 950 it knows the mode and leaves the matrix aside.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.fused_op import FusedOp, first_fault
from nextn.graphs.ops.rows import cast, fp32

FLOATS = "float32 or bfloat16"

_LARGEST_RANK = 8


def _rms_fault(x: Tensor, *_: object) -> str | None:
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


_WIDEST = 896
_MOST_HEADS = 1000


def _rope_fault(x: Tensor, cos: Tensor, sin: Tensor) -> str | None:
    return first_fault(
        (_heads(x, cos) is not None, "one angle for a row or for all heads of a row"),
        (2 * cos.shape[-1] < _WIDEST, f"fewer than {_WIDEST} channels that turn"),
        ((_heads(x, cos) or 0) < _MOST_HEADS, f"fewer than {_MOST_HEADS} heads"),
    )


def _heads(x: Tensor, cos: Tensor) -> int | None:
    """Heads that share an angle; None where angles lie otherwise."""
    if x.shape[:-1] == cos.shape[:-1]:
        return 1
    if x.dim() == 3 and cos.shape[:-1] == (x.shape[0], 1):
        return x.shape[1]
    return None


def _apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = 2 * cos.shape[-1]
    still, turning = fp32(x).split([x.shape[-1] - width, width], dim=-1)
    rows = turning.reshape(1, -1, _heads(x, cos) or 1, width)  # [1, T, N, R]
    turned = torch.ops.npu.npu_rotary_mul(
        rows, _of_pairs(cos), _of_pairs(sin), "interleave", _partners(width)
    )
    return torch.cat([still, turned.reshape(turning.shape)], dim=-1)


def _of_pairs(values: Tensor) -> Tensor:
    """`[..., R / 2]` -> `[1, T, 1, R]`, each value for both channels of a pair."""
    return torch.stack([values, values], dim=-1).reshape(1, -1, 1, 2 * values.shape[-1])


def _partners(width: int) -> Tensor:
    """`[R, R]` that takes channels (a, b) of each pair to (-b, a) when rows are multiplied by it."""
    column = torch.arange(width)
    odd = column % 2
    partner = column + 1 - 2 * odd
    sign = (2 * odd - 1).to(torch.float32)
    return torch.where(torch.arange(width)[:, None] == partner, sign, 0.0)


def _swiglu_fault(gate_up: Tensor, limit: float) -> str | None:
    return first_fault((gate_up.dim() >= 2, "rank 2 or more"), (limit > 0, "a limit above 0"))


def _clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    y: Tensor = torch.ops.npu.npu_clipped_swiglu(
        fp32(gate_up), dim=-1, alpha=1.0, limit=limit, bias=0.0, interleaved=False
    )
    return y


_LONGEST_AXIS = 65536
_BFLOAT16 = 15
"""torch's own number of the dtype, as torch_npu's schemas name it."""


def _int8_fault(x: Tensor, weight: Tensor, scales: Tensor, dtype: torch.dtype) -> str | None:
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


FUSED_OPS = (
    FusedOp("npu_rms_norm", "unit_rms", _rms_fault, _unit_rms),
    FusedOp("npu_rms_norm", "rms_norm", _rms_fault, _rms_norm),
    FusedOp("npu_rotary_mul", "apply_rope", _rope_fault, _apply_rope),
    FusedOp("npu_clipped_swiglu", "clamped_swiglu", _swiglu_fault, _clamped_swiglu),
    FusedOp("npu_quant_matmul", "int8_linear", _int8_fault, _int8_linear),
)
