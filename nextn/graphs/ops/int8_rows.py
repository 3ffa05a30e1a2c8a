"""Products with int8 weights: each row of the input is quantised at run time (W8A8, one scale per token).

The plain implementation is exact in the sense of int32 arithmetic, on every target: codes are small
integers, so fp32 products of `EXACT_COLUMNS` columns have no rounding, whatever their order, and their sums
are added as int32.

Source: docs/mathematics.md, "Int8 rows".
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.ops.operator import operator
from nextn.graphs.ops.rows import cast, fp32

LARGEST_CODE = 127

EXACT_COLUMNS = 1024
"""1024 products of at most 127 * 128 stay below 2**24, up to which fp32 has every integer."""


@operator("(Tensor x, Tensor weight, Tensor scales, ScalarType dtype) -> Tensor")
def int8_linear(x: Tensor, weight: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """`x [..., T, in]` times the transpose of int8 `weight [..., out, in]`, scales fp32 `[..., out, 1]`.

    The result `[..., T, out]` is in `dtype`; x is cast to `dtype` first. Leading axes broadcast.
    """
    codes, step = quantise_rows(cast(x, dtype))
    total = fp32(exact_product(codes, weight))
    return cast(total * scales.transpose(-1, -2) * step, dtype)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of `x [..., in]`, integers in fp32, and the step of each row, fp32 `[..., 1]`:
    the value of code 1.

    Codes round half to even. A row of zeros has step 0.
    """
    wide = fp32(x)
    step = torch.abs(wide).max(-1, keepdim=True).values / LARGEST_CODE
    codes = torch.round(wide / torch.where(step == 0.0, 1.0, step))
    # Only among denormal numbers does the rounding of `step` let a quotient be larger.
    return torch.clamp(codes, -LARGEST_CODE, LARGEST_CODE), step


def exact_product(codes: Tensor, weight: Tensor) -> Tensor:
    """int32 `[..., T, out]` from codes `[..., T, in]` and int8 `weight [..., out, in]`."""
    total = None
    for left, right in zip(
        codes.split(EXACT_COLUMNS, dim=-1), weight.split(EXACT_COLUMNS, dim=-1), strict=True
    ):
        part = torch.matmul(left, fp32(right).transpose(-1, -2)).to(torch.int32)
        total = part if total is None else total + part
    assert total is not None
    return total
