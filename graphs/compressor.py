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
from nextn.graphs.ops.linear import Weight, linear
from nextn.graphs.ops.rotate import rotate
from nextn.graphs.ops.rows import read_rows, write_rows
from nextn.graphs.rope import Rope
from nextn.graphs.session_shape import overlap
from nextn.graphs.window import Window

EMPTY_GATE = -1e30
"""Gate of the slots before position 0; finite, its softmax weight is exactly 0."""


class Compressor(nn.Module):
    """Writes ring rows and completed entries of one layer; `width` is D of the entries."""

    def __init__(self, config: ModelConfig, ratio: int, width: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.width = width
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
        own = self._ring_values(x, window)  # [B, V, 2cD]
        earlier = window.earlier_rows(ring, ring_rows, self.span - 1)
        context = torch.cat([earlier, own], dim=1)  # [B, span - 1 + V, 2cD]
        blocks = self._candidate_blocks(window)  # [B, J]
        pooled = self._pool(context, blocks, window)  # [B, J, D]
        cos, sin = rope(blocks * self.ratio)
        complete = (blocks + 1) * self.ratio <= (window.start + window.count)[:, None]
        write_rows(ring, window.ring_write_index(ring_rows), own)
        write_rows(entries, window.entry_index(blocks, complete, capacity), rotate(pooled, cos, sin))

    def _ring_values(self, x: Tensor, window: Window) -> Tensor:
        value, gate = linear(x, self.wkv_gate).view(window.batch, window.num_rows, -1).chunk(2, dim=-1)
        bias = read_rows(self.ape, window.positions % self.ratio)  # [B, V, cD]
        return torch.cat([value, gate + bias], dim=-1)

    def _candidate_blocks(self, window: Window) -> Tensor:
        """Blocks a window of V rows can complete: ceil(V / ratio) of them whatever its start."""
        count = -(-window.num_rows // self.ratio)
        return window.start[:, None] // self.ratio + torch.arange(count)  # [B, J]

    def _pool(self, context: Tensor, blocks: Tensor, window: Window) -> Tensor:
        """Gated mean of each block's positions: context `[B, P, 2cD]`, blocks `[B, J]` -> `[B, J, D]`."""
        length = context.shape[1]
        first = (blocks + 1) * self.ratio - self.span  # [B, J], position of the oldest pooled row
        position = first[:, :, None] + torch.arange(self.span)  # [B, J, span]
        offset = torch.clamp(position - (window.start - (self.span - 1))[:, None, None], max=length - 1)
        row = torch.arange(window.batch)[:, None, None] * length + offset
        value, gate = read_rows(context.flatten(0, 1), row).chunk(2, dim=-1)  # [B, J, span, cD]
        value, gate = self._overlapped(value), self._overlapped(gate)  # [B, J, span, D]
        gate = torch.where((position >= 0)[..., None], gate, EMPTY_GATE)
        pooled = (value * torch.softmax(gate, dim=2)).sum(2)
        return self.norm(pooled)

    def _overlapped(self, channels: Tensor) -> Tensor:
        """C4: the previous block gives its A half, the own block its B half (spec section 5.4)."""
        if self.span == self.ratio:
            return channels
        previous, own = channels.split(self.ratio, dim=2)
        return torch.cat([previous[..., : self.width], own[..., self.width :]], dim=2)
