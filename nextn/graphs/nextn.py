"""NextN, the draft layer: fuses target streams with the next token, one SWA layer, own head.

Source: docs/mathematics.md, "NextN layer".
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.attention import LayerState
from nextn.graphs.config import ModelConfig
from nextn.graphs.hyper import hyper_head, mixing, register_mixing
from nextn.graphs.layer import Layer
from nextn.graphs.ops.collectives import Parallel
from nextn.graphs.ops.linear import Weight, linear
from nextn.graphs.ops.norms import RMSNorm
from nextn.graphs.ops.rope import Rope
from nextn.graphs.window import Window


class NextN(Layer):
    """`mtp.0` of the release. Embedding and LM head are the Target's and stay with the caller."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__(config, ratio=0, hashed=False, dtype=dtype, parallel=parallel)
        self.e_proj = Weight((config.hidden_size, config.hidden_size), dtype)
        self.h_proj = Weight((config.hidden_size, config.hidden_size), dtype)
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, torch.float32)
        register_mixing(self, "hc_head", config, head=True)

    def fuse(self, streams: Tensor, embedded: Tensor) -> Tensor:
        """Streams of position i `[T, M, H]` and the embedding of token i + 1 `[T, H]` -> `[T, M, H]`."""
        token = linear(self.enorm(embedded), self.e_proj)  # [T, H]
        return token[:, None, :] + linear(self.hnorm(streams), self.h_proj)

    def draft(
        self, streams: Tensor, embedded: Tensor, ids: Tensor, window: Window, rope: Rope, ring: Tensor
    ) -> Tensor:
        """Own streams `[T, M, H]`, before hc_head; the next draft step takes them as its input."""
        return self(self.fuse(streams, embedded), ids, window, rope, LayerState(ring))

    def hidden(self, own_streams: Tensor) -> Tensor:
        """Own streams `[T, M, H]` -> LM head input fp32 `[T, H]`."""
        return self.norm(hyper_head(own_streams, mixing(self, "hc_head"), self.config))
