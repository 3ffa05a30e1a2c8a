"""Compressors: one entry per `ratio` positions, pooled from a ring that is addressed by position.

Each position leaves a ring row [value | gate], gate already carrying its positional bias. When a window
reaches the last position of a block, the block's rows (from the ring and from the window itself) are
pooled into one entry. The number of candidate blocks is fixed by the window's width; the incomplete ones
are computed all the same and written to the scratch slot.

Source: docs/mathematics.md, "Compressor".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.compress import compress
from nextn.graphs.ops.linear import Weight
from nextn.graphs.ops.norms import RMSNorm
from nextn.graphs.ops.rope import Rope
from nextn.graphs.ops.rows import write_rows
from nextn.graphs.session_shape import overlap
from nextn.graphs.window import CompressedEntries, Window


class Compressor(nn.Module):
    """Writes ring rows and completed entries of one layer; `width` is D of the entries."""

    def __init__(self, config: ModelConfig, ratio: int, width: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.span = overlap(ratio) * ratio  # positions pooled into one entry
        channels = overlap(ratio) * width
        self.wkv_gate = Weight((2 * channels, config.hidden_size), torch.float32)
        self.ape: Tensor
        self.register_buffer("ape", torch.zeros(ratio, channels))
        self.norm = RMSNorm(width, config.rms_norm_eps, torch.float32)

    def forward(
        self, x: Tensor, window: Window, rope: Rope, ring: Tensor, entries: CompressedEntries
    ) -> None:
        """x `[B * V, H]`; ring `[(slots + 1) * ring rows, 2cD]`; both buffers are written."""
        ring_rows = window.rows_per_slot(ring)
        blocks = self._candidate_blocks(window)  # [B, J]
        cos, sin = rope(blocks * self.ratio)
        own, pooled = compress(
            x=x.view(window.batch, window.num_rows, -1),
            weight=self.wkv_gate.weight,
            bias=self.ape,
            norm=self.norm.weight,
            earlier=window.earlier_rows(ring, ring_rows, self.span - 1),
            start=window.start,
            count=window.count,
            cos=cos,
            sin=sin,
            ratio=self.ratio,
            eps=self.norm.eps,
        )
        complete = (blocks + 1) * self.ratio <= (window.start + window.count)[:, None]
        write_rows(ring, window.ring_write_index(ring_rows), own)
        write_rows(entries.rows, window.entry_index(blocks, complete, entries.capacity), pooled)

    def _candidate_blocks(self, window: Window) -> Tensor:
        """The blocks that a window of V rows can complete, ceil(V / ratio) of them wherever it starts."""
        count = -(-window.num_rows // self.ratio)
        return window.start[:, None] // self.ratio + torch.arange(count)  # [B, J]
