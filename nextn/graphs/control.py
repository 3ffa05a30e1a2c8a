"""Rows of the control and result blocks: reading and replacing fields, and drawing the tokens they ask for.

Source: docs/design.md, "Control and result blocks".
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.ops.sample_token import sample_token
from nextn.runtime.contract.blocks import Control, Field


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


def draw_rows(logits: Tensor, control: Tensor, positions: Tensor) -> Tensor:
    """Tokens `[B, V]` drawn by the seed and the temperature in the control rows `[B, F]`.

    logits fp32 `[B * V, vocab]`; positions int64 `[B, V]`, those that the drawn tokens will have.
    """
    seed = read_field(control, Control.SEED)[:, 0]
    temperature = read_field(control, Control.TEMPERATURE)[:, 0]
    return sample_token(logits.view(*positions.shape, -1), seed, positions, temperature)
