"""Attention of one layer: sliding window, plus compressed entries in C4 and C128 layers (spec 4, 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nextn.graphs.compressor import Compressor
from nextn.graphs.config import ModelConfig
from nextn.graphs.indexer import Indexer
from nextn.graphs.norm import RMSNorm
from nextn.graphs.ops.apply_rope import apply_rope
from nextn.graphs.ops.cast import cast
from nextn.graphs.ops.collectives import reduce_sum
from nextn.graphs.ops.linear import Weight, grouped_linear, linear
from nextn.graphs.ops.rms_norm import unit_rms
from nextn.graphs.ops.rows import write_rows
from nextn.graphs.ops.window_attention import window_attention
from nextn.graphs.rope import Rope
from nextn.graphs.window import Window


@dataclass(frozen=True)
class LayerState:
    """The state buffers of one layer; the last four are None where the layer kind has none."""

    window: Tensor
    ring: Tensor | None = None
    entries: Tensor | None = None
    indexer_ring: Tensor | None = None
    indexer_entries: Tensor | None = None


class Attention(nn.Module):
    """`ratio` 0: window only; 4: window + indexed entries; 128: window + all visible entries."""

    def __init__(self, config: ModelConfig, ratio: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
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
        chosen, capacity = self._compress(x, latent, window, rope, (cos, sin), state)
        output = window_attention(
            query.view(window.batch, window.num_rows, *query.shape[1:]),
            keys,
            window.start,
            window.count,
            self.attn_sink,
            state.entries,
            None if state.entries is None else window.slots,
            chosen,
            self.ratio,
            capacity,
        )
        self.write_window(own, window, state.window)
        output = apply_rope(output.flatten(0, 1), cos[:, None], -sin[:, None])  # [T, N, D]
        grouped = output.reshape(x.shape[0], config.o_groups, -1)
        return reduce_sum(linear(grouped_linear(grouped, self.wo_a, config.o_groups), self.wo_b))

    def key_value(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated key = value row of each input row: fp32 `[T, D]`."""
        return apply_rope(self.kv_norm(linear(x, self.wkv)), cos, sin)

    def write_window(self, own: Tensor, window: Window, ring: Tensor) -> None:
        """Store key-value rows `own [T, D]` in the sliding-window ring."""
        rows_per_slot = ring.shape[0] // (window.scratch_slot + 1)
        write_rows(ring, window.ring_write_index(rows_per_slot), own)

    def _window_keys(self, own: Tensor, window: Window, ring: Tensor) -> Tensor:
        """Keys `[B, W - 1 + V, D]` from position start - (W - 1) on."""
        rows_per_slot = ring.shape[0] // (window.scratch_slot + 1)
        earlier = window.earlier_rows(ring, rows_per_slot, self.config.sliding_window - 1)
        # The ring's dtype rounds the window's own rows too, so that a row is the same key in every graph.
        current = cast(own, ring.dtype).view(window.batch, window.num_rows, -1)
        return torch.cat([earlier, current], dim=1)

    def _compress(
        self,
        x: Tensor,
        latent: Tensor,
        window: Window,
        rope: Rope,
        rotary: tuple[Tensor, Tensor],
        state: LayerState,
    ) -> tuple[Tensor | None, int]:
        """Writes the entries that the window completes; which are chosen `[B, V, topk]`, and how many fit.

        None are chosen where the layer has no indexer, or all fit into its choice.
        """
        if self.compressor is None:
            return None, 0
        assert state.ring is not None and state.entries is not None
        capacity = state.entries.shape[0] // (window.scratch_slot + 1)
        self.compressor(x, window, rope, state.ring, state.entries, capacity)
        if self.indexer is None:
            return None, capacity
        assert state.indexer_ring is not None and state.indexer_entries is not None
        self.indexer.compressor(x, window, rope, state.indexer_ring, state.indexer_entries, capacity)
        if capacity <= self.config.index_topk:
            return None, capacity
        return self.indexer.choose(x, latent, window, rotary, state.indexer_entries, capacity), capacity
