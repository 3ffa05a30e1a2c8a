"""Row access to the flat state buffers. `write_rows` is the only in-place write of every graph."""

from __future__ import annotations

from torch import Tensor

from nextn.graphs.ops.cast import cast


def read_rows(buffer: Tensor, index: Tensor) -> Tensor:
    """`buffer [N, D]`, `index` int64 of any shape in [0, N): `[*index.shape, D]`."""
    return buffer[index]


def write_rows(buffer: Tensor, index: Tensor, rows: Tensor) -> None:
    """Set `buffer[index] = rows`, index int64 `[...]`, rows `[..., D]`, cast to the buffer's dtype.

    Indices of live rows are unique within a call; only scratch rows may repeat, and which of the
    repeated rows wins is unspecified.
    """
    buffer.index_put_((index.reshape(-1),), cast(rows.reshape(-1, buffer.shape[-1]), buffer.dtype))
