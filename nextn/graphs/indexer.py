"""The C4 indexer: scores compressed entries with its own small compressor and chooses the best.

Source: docs/mathematics.md, "Indexer and the tie rule".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nextn.graphs.compressor import Compressor
from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.indexer_topk import indexer_topk
from nextn.graphs.ops.linear import Weight, linear
from nextn.graphs.ops.rope import apply_rope
from nextn.graphs.ops.rows import fp32
from nextn.graphs.window import CompressedEntries, Window


class Indexer(nn.Module):
    """Scores are fp32. The release's Hadamard rotation cancels in exact arithmetic; it is left out, and so is
    the fp4 rounding after it.
    """

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
        entries: CompressedEntries,
    ) -> Tensor:
        """The best entries of each row by the tie rule: numbers int64 `[B, V, index_topk]`, hidden ones last.

        x `[T, H]`, latent (the normed query latent) `[T, q_lora_rank]`, rotary cos, sin `[T, R / 2]`, entries
        of the indexer's own compressor.
        """
        cos, sin = rotary
        query = linear(latent, self.wq_b).view(-1, self.heads, self.width)  # [T, NI, DI]
        query = apply_rope(query, cos[:, None], sin[:, None])
        scale = self.width**-0.5 * self.heads**-0.5
        weight = fp32(linear(x, self.weights_proj)) * scale  # [T, NI]
        return indexer_topk(
            query=query.view(window.batch, window.num_rows, self.heads, self.width),
            weight=weight.view(window.batch, window.num_rows, self.heads),
            entries=entries.rows,
            slots=entries.slots,
            complete=window.reach // entries.ratio,
            topk=self.topk,
            capacity=entries.capacity,
        )
