"""Rows of the flat state buffers, and dtypes. `write_rows` is the only in-place write of every graph.

Source: docs/mathematics.md, "Rows, joints, casts".
"""

from __future__ import annotations

import torch
from torch import Tensor


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in `dtype`; `x` itself if that is its dtype already.

    `Tensor.to` traces as a conversion and a metadata assertion even where there is nothing to convert: those
    were 13 % of the nodes of an fp32 `round`.
    """
    return x if x.dtype == dtype else x.to(dtype)


def fp32(x: Tensor) -> Tensor:
    """`x` in float32."""
    return cast(x, torch.float32)


def read_rows(buffer: Tensor, index: Tensor) -> Tensor:
    """`buffer [N, D]`, `index` int64 of any shape in [0, N): `[*index.shape, D]`."""
    return buffer[index]


def write_rows(buffer: Tensor, index: Tensor, rows: Tensor) -> None:
    """Set `buffer[index] = rows`, index int64 `[...]`, rows `[..., D]`, cast to the buffer's dtype.

    Indices of live rows are unique within a call; only scratch rows may repeat, and which of the
    repeated rows wins is unspecified.
    """
    buffer.index_put_((index.reshape(-1),), cast(rows.reshape(-1, buffer.shape[-1]), buffer.dtype))
