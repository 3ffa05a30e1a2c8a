"""Reading and rewriting rows of the control and result blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.runtime.contract.blocks import Field


def read_field(rows: Tensor, field: Field) -> Tensor:
    """Columns of one field: `[B, length]` of block rows int64 `[B, F]`."""
    return rows[:, field.columns]


def with_fields(rows: Tensor, values: dict[Field, Tensor]) -> Tensor:
    """Block rows `[B, F]` with some fields replaced by int64 `[B, length]` (or a shorter prefix of them)."""
    pieces, column = [], 0
    for field in sorted(values, key=lambda field: field.offset):
        pieces.append(rows[:, column : field.offset])
        pieces.append(values[field])
        column = field.offset + values[field].shape[1]
    pieces.append(rows[:, column:])
    return torch.cat([piece for piece in pieces if piece.shape[1] > 0], dim=1)
