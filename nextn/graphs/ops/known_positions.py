"""How far each row of a window knows its sequence."""

from __future__ import annotations

import torch
from torch import Tensor


def known_positions(start: Tensor, count: Tensor, rows: int) -> Tensor:
    """Positions that each of `rows` rows may know, int64 `[B, rows]`: up to its own, none past the real rows.

    start, count: int64 `[B]`, the first row's position and how many rows are real.
    """
    return torch.minimum(start[:, None] + torch.arange(rows) + 1, (start + count)[:, None])
