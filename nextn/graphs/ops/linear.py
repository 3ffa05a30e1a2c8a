"""`linear` over a weight object, so that a quantised layout is a property of the weight.

Source: docs/mathematics.md, "Attention".
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nextn.graphs.ops.int8_rows import int8_linear
from nextn.graphs.ops.rows import cast

StoredLayout = Literal["int8_row"]
"""The layouts of a matrix besides the plain one."""


class Weight(nn.Module):
    """A dense matrix `[out, in]`, or a stack of them, whose products are in the compute dtype `dtype`.

    As it is made, it holds the matrix itself. In layout `int8_row`, `weight` holds int8 codes, and `scales`
    fp32 `[..., out, 1]` the value of code 1 in each row.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weight: Tensor
        self.scales: Tensor | None
        self.register_buffer("weight", torch.zeros(shape, dtype=dtype))
        self.register_buffer("scales", None)

    def store_as(self, layout: StoredLayout) -> None:
        """Replaces the matrix by zeros in `layout`; call it before values are loaded."""
        assert layout == "int8_row", layout
        self.scales = torch.zeros((*self.weight.shape[:-1], 1))
        self.weight = torch.zeros(self.weight.shape, dtype=torch.int8)


def linear(x: Tensor, matrix: Weight) -> Tensor:
    """`x [..., in]` times the transpose of `matrix [out, in]`: `[..., out]` in the compute dtype."""
    if matrix.scales is not None:
        return int8_linear(x, matrix.weight, matrix.scales, matrix.dtype)
    return functional.linear(cast(x, matrix.dtype), matrix.weight)


def grouped_linear(x: Tensor, matrix: Weight, groups: int) -> Tensor:
    """Block-diagonal product: `x [T, G, in]`, `matrix [G * out, in]` -> `[T, G * out]`."""
    rows, _, width = x.shape
    blocks = matrix.weight.view(groups, -1, width)  # [G, out, in]
    if matrix.scales is not None:
        y = int8_linear(x.transpose(0, 1), blocks, matrix.scales.view(groups, -1, 1), matrix.dtype)
    else:
        y = torch.bmm(cast(x, matrix.dtype).transpose(0, 1), blocks.transpose(1, 2))  # [G, T, out]
    return y.transpose(0, 1).reshape(rows, -1)
