"""`npu_rotary_mul` in its interleaved mode, on the channels that turn.

On A2 and A3 the graph engine's operator takes the permutation of channels as a matrix of signs, and without
it would pair the halves of a row instead; on the 950 it knows the mode and leaves the matrix aside.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.ascend.fused_ops.fused_op import Form, first_fault
from nextn.graphs.ops.rows import fp32

_WIDEST = 896
_MOST_HEADS = 1000


def _why_not(x: Tensor, cos: Tensor, sin: Tensor) -> str | None:
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


FORMS = (Form("npu_rotary_mul", "apply_rope", _why_not, _apply_rope),)
