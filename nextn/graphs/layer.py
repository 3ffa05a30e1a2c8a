"""One decoder layer: attention and MoE, each wrapped in a hyper-connection.

Source: docs/mathematics.md, "Hyper-connections".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nextn.graphs.attention import Attention, LayerState
from nextn.graphs.config import ModelConfig
from nextn.graphs.hyper import hyper_pre, mixing, register_mixing
from nextn.graphs.moe import MixtureOfExperts
from nextn.graphs.ops.collectives import Parallel
from nextn.graphs.ops.hyper_connection import hyper_post
from nextn.graphs.ops.norms import RMSNorm
from nextn.graphs.ops.rope import Rope
from nextn.graphs.window import Window


class Layer(nn.Module):
    """A Target layer of any ratio, or the NextN block (ratio 0, score-routed)."""

    def __init__(
        self, config: ModelConfig, ratio: int, hashed: bool, dtype: torch.dtype, parallel: Parallel
    ) -> None:
        super().__init__()
        self.config = config
        self.attn = Attention(config, ratio, dtype, parallel)
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.ffn = MixtureOfExperts(config, hashed, dtype, parallel)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        register_mixing(self, "hc_attn", config)
        register_mixing(self, "hc_ffn", config)

    def forward(self, x: Tensor, ids: Tensor, window: Window, rope: Rope, state: LayerState) -> Tensor:
        """Streams `x [T, M, H]`, token ids int64 `[T]` -> streams `[T, M, H]`; writes the layer's state."""
        u, post, comb = hyper_pre(x, mixing(self, "hc_attn"), self.config)
        x = hyper_post(self.attn(self.attn_norm(u), window, rope, state), x, post, comb)
        u, post, comb = hyper_pre(x, mixing(self, "hc_ffn"), self.config)
        return hyper_post(self.ffn(self.ffn_norm(u), ids), x, post, comb)

    def write_window_only(self, x: Tensor, window: Window, rope: Rope, ring: Tensor) -> None:
        """Write the key-value rows of streams `x [T, M, H]` to the ring, and compute nothing else."""
        u, _, _ = hyper_pre(x, mixing(self, "hc_attn"), self.config)
        cos, sin = rope(window.positions.reshape(-1))
        self.attn.write_window(self.attn.key_value(self.attn_norm(u), cos, sin), window, ring)
