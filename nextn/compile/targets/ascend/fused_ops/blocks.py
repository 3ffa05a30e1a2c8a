"""Caches in blocks of consecutive rows, as Ascend's paged operators read them, from state as we keep it."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_SIZES = (128, 64, 32, 16)
"""Rows of a block: multiples of 16. Larger ones have shorter tables; no engine uses more than 128."""

ENTRY_ROWS_MULTIPLES = (BLOCK_SIZES[-1], BLOCK_SIZES[0])
"""`SessionShape.entry_rows_multiples` by which entries fill whole blocks."""


def block_size(capacity: int) -> int | None:
    """Of a buffer whose slots have `capacity` consecutive rows, or, at 0, of none; None if no block fits."""
    return next((size for size in BLOCK_SIZES if capacity % size == 0), None)


def as_blocks(rows: Tensor, block: int) -> Tensor:
    """`[rows, D]` -> `[blocks, block, 1, D]`, without a copy."""
    return rows.view(-1, block, 1, rows.shape[-1])


def blocks_of_slots(slots: Tensor, capacity: int, block: int, columns: int) -> Tensor:
    """Block table int32 `[B, columns]` of buffers by slot; columns past a slot's last block repeat it."""
    of_slot = capacity // block
    column = torch.clamp(torch.arange(columns), max=of_slot - 1)
    return (slots[:, None] * of_slot + column).to(torch.int32)
