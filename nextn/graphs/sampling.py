"""Token draw of a set of rows from their control rows: the bridge between phases and the draw rule."""

from __future__ import annotations

from torch import Tensor

from nextn.graphs.control import read_field
from nextn.graphs.ops.sample_token import sample_token
from nextn.runtime.contract.blocks import Control


def draw_rows(logits: Tensor, control: Tensor, positions: Tensor) -> Tensor:
    """logits fp32 `[B * V, vocab]`, control rows `[B, F]`, drawn positions `[B, V]` -> tokens `[B, V]`."""
    seed = read_field(control, Control.SEED)[:, 0]
    temperature = read_field(control, Control.TEMPERATURE)[:, 0]
    return sample_token(logits.view(*positions.shape, -1), seed, positions, temperature)
