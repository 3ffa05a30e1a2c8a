"""`linear` over a weight object, so that a packed or quantised layout is a property of the weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from nextn.graphs.ops.cast import cast
from nextn.graphs.ops.int8_rows import int8_linear


class Weight(nn.Module):
    """A dense matrix `[out, in]` (or a stack of them) that products take in the compute dtype.

    Layout `plain` is the matrix itself. Layout `int8_row` is int8 codes in `weight`, and in `scales` fp32
    `[..., out, 1]` what a code of each row is worth.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weight: Tensor
        self.scales: Tensor | None
        self.register_buffer("weight", torch.zeros(shape, dtype=dtype))
        self.register_buffer("scales", None)

    def store_as_int8_rows(self) -> None:
        """Makes zeros of layout `int8_row` of a matrix whose values are yet to come."""
        self.scales = torch.zeros((*self.weight.shape[:-1], 1))
        self.weight = torch.zeros(self.weight.shape, dtype=torch.int8)


def linear(x: Tensor, matrix: Weight) -> Tensor:
    """`x [..., in]` times the transpose of `matrix [out, in]`: `[..., out]` in the compute dtype."""
    if matrix.scales is not None:
        return int8_linear(x, matrix.weight, matrix.scales, matrix.dtype)
    return functional.linear(cast(x, matrix.dtype), matrix.weight)


def grouped_linear(x: Tensor, matrix: Weight, groups: int) -> Tensor:
    """Block-diagonal product: `x [T, G, in]`, `matrix [G * out, in]` -> `[T, G * out]` (spec 4, step 9)."""
    rows, _, width = x.shape
    blocks = matrix.weight.view(groups, -1, width)  # [G, out, in]
    if matrix.scales is not None:
        y = int8_linear(x.transpose(0, 1), blocks, matrix.scales.view(groups, -1, 1), matrix.dtype)
    else:
        y = torch.bmm(cast(x, matrix.dtype).transpose(0, 1), blocks.transpose(1, 2))  # [G, T, out]
    return y.transpose(0, 1).reshape(rows, -1)
