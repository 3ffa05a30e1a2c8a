"""The C4 indexer: scores compressed entries with its own small compressor and picks the best (spec 5.5)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nextn.graphs.compressor import Compressor
from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.apply_rope import apply_rope
from nextn.graphs.ops.cast import fp32
from nextn.graphs.ops.indexer_topk import indexer_topk
from nextn.graphs.ops.linear import Weight, linear
from nextn.graphs.window import Window


class Indexer(nn.Module):
    """Index scores are fp32; Hadamard rotation and fp4 simulation cancel in exact math and are left out."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = config.index_n_heads
        self.width = config.index_head_dim
        self.topk = config.index_topk
        self.wq_b = Weight((self.heads * self.width, config.q_lora_rank), dtype)
        self.weights_proj = Weight((self.heads, config.hidden_size), dtype)
        self.compressor = Compressor(config, 4, self.width)

    def choose(
        self,
        x: Tensor,
        latent: Tensor,
        window: Window,
        rotary: tuple[Tensor, Tensor],
        entries: Tensor,
        capacity: int,
    ) -> Tensor:
        """Entry numbers int64 `[B, V, index_topk]`, best by the tie rule; hidden ones fill up at the end.

        x `[T, H]`, latent (the normed query latent) `[T, q_lora_rank]`, entries
        `[(slots + 1) * capacity, index_head_dim]`; rotary cos, sin `[T, R / 2]`.
        """
        cos, sin = rotary
        query = linear(latent, self.wq_b).view(-1, self.heads, self.width)  # [T, NI, DI]
        query = apply_rope(query, cos[:, None], sin[:, None])
        scale = self.width**-0.5 * self.heads**-0.5
        weight = fp32(linear(x, self.weights_proj)) * scale  # [T, NI]
        return indexer_topk(
            query.view(window.batch, window.num_rows, self.heads, self.width),
            weight.view(window.batch, window.num_rows, self.heads),
            entries,
            window.slots,
            window.reach // self.compressor.ratio,
            self.topk,
            capacity,
        )
