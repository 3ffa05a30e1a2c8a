"""`linear` over a weight object, so that a packed or quantised layout is a property of the weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from nextn.graphs.ops.cast import cast


class Weight(nn.Module):
    """A dense matrix `[out, in]` (or a stack of them) in its compute dtype, layout `plain`."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.weight: Tensor
        self.register_buffer("weight", torch.zeros(shape, dtype=dtype))


def linear(x: Tensor, matrix: Weight) -> Tensor:
    """`x [..., in]` times the transpose of `matrix [out, in]`: `[..., out]` in the weight's dtype."""
    return functional.linear(cast(x, matrix.weight.dtype), matrix.weight)


def grouped_linear(x: Tensor, matrix: Weight, groups: int) -> Tensor:
    """Block-diagonal product: `x [T, G, in]`, `matrix [G * out, in]` -> `[T, G * out]` (spec 4, step 9)."""
    rows, _, width = x.shape
    blocks = matrix.weight.view(groups, -1, width)  # [G, out, in]
    y = torch.bmm(cast(x, blocks.dtype).transpose(0, 1), blocks.transpose(1, 2))  # [G, T, out]
    return y.transpose(0, 1).reshape(rows, -1)
