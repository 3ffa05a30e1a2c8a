"""Compressors: one entry per `ratio` positions, pooled from a position-addressed ring (spec 5.2-5.4, 5.7).

Each position leaves a ring row [value | gate], gate already carrying its positional bias. When a window
reaches the last position of a block, the block's rows (from the ring and from the window itself) are
pooled into one entry. The number of candidate blocks is fixed by the window's width; the incomplete ones
are computed all the same and written to the scratch slot.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nextn.graphs.config import ModelConfig
from nextn.graphs.norm import RMSNorm
from nextn.graphs.ops.compress import compress
from nextn.graphs.ops.linear import Weight
from nextn.graphs.ops.rows import write_rows
from nextn.graphs.rope import Rope
from nextn.graphs.session_shape import overlap
from nextn.graphs.window import Window


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
        self, x: Tensor, window: Window, rope: Rope, ring: Tensor, entries: Tensor, capacity: int
    ) -> None:
        """x `[B * V, H]`; ring `[(slots + 1) * ring rows, 2cD]`; entries `[(slots + 1) * capacity, D]`."""
        ring_rows = ring.shape[0] // (window.scratch_slot + 1)
        blocks = self._candidate_blocks(window)  # [B, J]
        cos, sin = rope(blocks * self.ratio)
        own, pooled = compress(
            x.view(window.batch, window.num_rows, -1),
            self.wkv_gate.weight,
            self.ape,
            self.norm.weight,
            window.earlier_rows(ring, ring_rows, self.span - 1),
            window.start,
            window.count,
            cos,
            sin,
            self.ratio,
            self.norm.eps,
        )
        complete = (blocks + 1) * self.ratio <= (window.start + window.count)[:, None]
        write_rows(ring, window.ring_write_index(ring_rows), own)
        write_rows(entries, window.entry_index(blocks, complete, capacity), pooled)

    def _candidate_blocks(self, window: Window) -> Tensor:
        """Blocks a window of V rows can complete: ceil(V / ratio) of them whatever its start."""
        count = -(-window.num_rows // self.ratio)
        return window.start[:, None] // self.ratio + torch.arange(count)  # [B, J]
