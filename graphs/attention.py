"""Attention of one layer: sliding window, plus compressed entries in C4 and C128 layers (spec 4, 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nextn.graphs.compressor import Compressor
from nextn.graphs.config import ModelConfig
from nextn.graphs.indexer import Indexer
from nextn.graphs.norm import RMSNorm
from nextn.graphs.ops.cast import cast
from nextn.graphs.ops.collectives import reduce_sum
from nextn.graphs.ops.linear import Weight, grouped_linear, linear
from nextn.graphs.ops.rms_norm import unit_rms
from nextn.graphs.ops.rotate import rotate
from nextn.graphs.ops.rows import read_rows, write_rows
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
        query = rotate(unit_rms(query, config.rms_norm_eps), cos[:, None], sin[:, None])  # [T, N, D]
        own = self.key_value(x, cos, sin)
        keys, keys_visible = self._window_keys(own, window, state.window)
        entries, entries_visible = self._entries(x, latent, window, rope, (cos, sin), state)
        output = window_attention(
            query.view(window.batch, window.num_rows, *query.shape[1:]),
            keys,
            keys_visible,
            entries,
            entries_visible,
            self.attn_sink,
        )
        self.write_window(own, window, state.window)
        output = rotate(output.flatten(0, 1), cos[:, None], -sin[:, None])  # [T, N, D]
        grouped = output.reshape(x.shape[0], config.o_groups, -1)
        return reduce_sum(linear(grouped_linear(grouped, self.wo_a, config.o_groups), self.wo_b))

    def key_value(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated key = value row of each input row: fp32 `[T, D]`."""
        return rotate(self.kv_norm(linear(x, self.wkv)), cos, sin)

    def write_window(self, own: Tensor, window: Window, ring: Tensor) -> None:
        """Store key-value rows `own [T, D]` in the sliding-window ring."""
        rows_per_slot = ring.shape[0] // (window.scratch_slot + 1)
        write_rows(ring, window.ring_write_index(rows_per_slot), own)

    def _window_keys(self, own: Tensor, window: Window, ring: Tensor) -> tuple[Tensor, Tensor]:
        """Keys `[B, S, D]` from position start - (W - 1) on, S = W - 1 + V, and who sees them `[B, V, S]`."""
        rows_per_slot = ring.shape[0] // (window.scratch_slot + 1)
        reach = self.config.sliding_window - 1
        earlier = window.earlier_rows(ring, rows_per_slot, reach)
        # The ring's dtype rounds the window's own rows too, so that a row is the same key in every graph.
        current = cast(own, ring.dtype).view(window.batch, window.num_rows, -1)
        keys = torch.cat([earlier, current], dim=1)
        key = torch.arange(keys.shape[1])
        query = torch.arange(window.num_rows)[:, None]
        band = (key >= query) & (key <= query + reach)  # [V, W - 1 + V]
        exists = key >= reach - window.start[:, None, None]  # [B, 1, W - 1 + V]
        return keys, band & exists

    def _entries(
        self,
        x: Tensor,
        latent: Tensor,
        window: Window,
        rope: Rope,
        rotary: tuple[Tensor, Tensor],
        state: LayerState,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Entries `[B, E, D]` or, chosen per row, `[B, V, topk, D]`, and their visibility to each row."""
        if self.compressor is None:
            return None, None
        assert state.ring is not None and state.entries is not None
        capacity = state.entries.shape[0] // (window.scratch_slot + 1)
        self.compressor(x, window, rope, state.ring, state.entries, capacity)
        number = torch.arange(capacity)
        visible = number < (window.reach // self.ratio)[:, :, None]  # [B, V, E]
        if self.indexer is not None:
            assert state.indexer_ring is not None and state.indexer_entries is not None
            self.indexer.compressor(x, window, rope, state.indexer_ring, state.indexer_entries, capacity)
            if capacity > self.config.index_topk:
                chosen = self.indexer.choose(x, latent, window, rotary, state.indexer_entries, visible)
                return self._chosen_entries(chosen, window, state.entries, capacity)
        complete = number < ((window.start + window.count) // self.ratio)[:, None]  # [B, E]
        rows = read_rows(state.entries, window.slots[:, None] * capacity + number)
        return torch.where(complete[..., None], rows, 0), visible

    def _chosen_entries(
        self, chosen: Tensor, window: Window, entries: Tensor, capacity: int
    ) -> tuple[Tensor, Tensor]:
        visible = chosen < (window.reach // self.ratio)[:, :, None]  # [B, V, topk]
        rows = read_rows(entries, window.slots[:, None, None] * capacity + chosen)
        return torch.where(visible[..., None], rows, 0), visible
