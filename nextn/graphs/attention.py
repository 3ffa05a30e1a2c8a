"""Attention of one layer: sliding window, plus compressed entries in C4 and C128 layers.

Source: docs/mathematics.md, "Attention".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nextn.graphs.compressor import Compressor
from nextn.graphs.config import ModelConfig
from nextn.graphs.indexer import Indexer
from nextn.graphs.ops.collectives import Parallel, reduce_sum
from nextn.graphs.ops.linear import Weight, grouped_linear, linear
from nextn.graphs.ops.norms import RMSNorm, unit_rms
from nextn.graphs.ops.rope import Rope, apply_rope
from nextn.graphs.ops.rows import cast, write_rows
from nextn.graphs.ops.window_attention import window_attention
from nextn.graphs.window import CompressedEntries, Window


@dataclass(frozen=True)
class LayerState:
    """The state buffers of one layer; the last four are None if the layer has no such buffer."""

    window: Tensor
    ring: Tensor | None = None
    entries: Tensor | None = None
    indexer_ring: Tensor | None = None
    indexer_entries: Tensor | None = None


class Attention(nn.Module):
    """`ratio` 0: window only; 4: window + indexed entries; 128: window + all visible entries."""

    def __init__(self, config: ModelConfig, ratio: int, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__()
        self.config = config
        self.parallel = parallel
        self.ratio = ratio
        heads, width = config.num_attention_heads, config.head_dim
        self.wq_a = Weight((config.q_lora_rank, config.hidden_size), dtype)
        self.q_norm = RMSNorm(config.q_lora_rank, config.rms_norm_eps, dtype)
        self.wq_b = Weight((heads * width, config.q_lora_rank), dtype)
        self.wkv = Weight((width, config.hidden_size), dtype)
        self.kv_norm = RMSNorm(width, config.rms_norm_eps, torch.float32)
        latent = config.o_groups * config.o_lora_rank
        self.wo_a = Weight((latent, heads * width // config.o_groups), dtype)
        self.wo_b = Weight((config.hidden_size, latent), dtype)
        self.attn_sink: Tensor
        self.register_buffer("attn_sink", torch.zeros(heads))
        self.compressor = Compressor(config, ratio, width) if ratio > 0 else None
        self.indexer = Indexer(config, dtype) if ratio == 4 else None

    def forward(self, x: Tensor, window: Window, rope: Rope, state: LayerState) -> Tensor:
        """x `[T, H]`, the normed sub-layer input of T = B * V rows -> `[T, H]`; writes the rows' state."""
        config = self.config
        cos, sin = rope(window.positions.reshape(-1))  # [T, R / 2]
        latent = self.q_norm(linear(x, self.wq_a))  # [T, q_lora_rank]
        query = linear(latent, self.wq_b).view(-1, config.num_attention_heads, config.head_dim)
        query = apply_rope(unit_rms(query, config.rms_norm_eps), cos[:, None], sin[:, None])  # [T, N, D]
        own = self.key_value(x, cos, sin)
        keys = self._window_keys(own, window, state.window)
        entries = self._compress(x, window, rope, state)
        chosen = None if entries is None else self._choose(x, latent, window, (cos, sin), state)
        output = window_attention(
            query=query.view(window.batch, window.num_rows, *query.shape[1:]),
            keys=keys,
            start=window.start,
            count=window.count,
            sink=self.attn_sink,
            entries=None if entries is None else entries.rows,
            slots=None if entries is None else entries.slots,
            chosen=chosen,
            ratio=self.ratio,
            capacity=0 if entries is None else entries.capacity,
        )
        self.write_window(own, window, state.window)
        output = apply_rope(output.flatten(0, 1), cos[:, None], -sin[:, None])  # [T, N, D]
        grouped = output.reshape(x.shape[0], config.o_groups, -1)
        output = linear(grouped_linear(grouped, self.wo_a, config.o_groups), self.wo_b)
        return reduce_sum(output, self.parallel)

    def key_value(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated key = value row of each input row: fp32 `[T, D]`."""
        return apply_rope(self.kv_norm(linear(x, self.wkv)), cos, sin)

    def write_window(self, own: Tensor, window: Window, ring: Tensor) -> None:
        """Store key-value rows `own [T, D]` in the sliding-window ring."""
        write_rows(ring, window.ring_write_index(window.rows_per_slot(ring)), own)

    def _window_keys(self, own: Tensor, window: Window, ring: Tensor) -> Tensor:
        """Keys `[B, W - 1 + V, D]` from position start - (W - 1) on."""
        earlier = window.earlier_rows(ring, window.rows_per_slot(ring), self.config.sliding_window - 1)
        # The ring's dtype rounds the window's own rows too, so that a row is the same key in every graph.
        current = cast(own, ring.dtype).view(window.batch, window.num_rows, -1)
        return torch.cat([earlier, current], dim=1)

    def _compress(self, x: Tensor, window: Window, rope: Rope, state: LayerState) -> CompressedEntries | None:
        """Writes the entries that the window completes, the indexer's too; None in a window-only layer."""
        if self.compressor is None:
            return None
        assert state.ring is not None and state.entries is not None
        entries = window.entries(state.entries, self.ratio)
        self.compressor(x, window, rope, state.ring, entries)
        if self.indexer is not None:
            assert state.indexer_ring is not None
            self.indexer.compressor(x, window, rope, state.indexer_ring, self._indexed(window, state))
        return entries

    def _choose(
        self, x: Tensor, latent: Tensor, window: Window, rotary: tuple[Tensor, Tensor], state: LayerState
    ) -> Tensor | None:
        """The entries that each row attends to, `[B, V, topk]`; None for all that are visible to it.

        That is the case without an indexer, and where no more entries exist than the indexer would choose.
        """
        if self.indexer is None:
            return None
        indexed = self._indexed(window, state)
        if indexed.capacity <= self.config.index_topk:
            return None
        return self.indexer.choose(x, latent, window, rotary, indexed)

    def _indexed(self, window: Window, state: LayerState) -> CompressedEntries:
        """The entries that the indexer scores."""
        assert state.indexer_entries is not None
        return window.entries(state.indexer_entries, self.ratio)
