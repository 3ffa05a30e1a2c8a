"""`Model`: the Target, NextN and the modules they share, under the names of packed weights.

Source: docs/design.md, "Packed weights".
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from nextn.graphs.attention import LayerState
from nextn.graphs.config import ModelConfig
from nextn.graphs.hyper import hyper_head, mixing, register_mixing
from nextn.graphs.layer import Layer
from nextn.graphs.nextn import NextN
from nextn.graphs.ops.linear import Weight
from nextn.graphs.ops.norms import RMSNorm
from nextn.graphs.ops.rope import Rope, inverse_frequencies
from nextn.graphs.ops.rows import read_rows
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.graphs.window import Window
from nextn.runtime.contract.errors import CheckpointError


class Model(nn.Module):
    """Every weight of an artifact; `mtp` is empty at k = 0. Buffers only: nothing is trained here."""

    def __init__(self, shape: SessionShape) -> None:
        super().__init__()
        config = shape.config
        dtype = getattr(torch, shape.dtype)
        self.config = config
        self.embed = Weight((config.vocab_size, config.hidden_size), dtype)
        self.layers = nn.ModuleList(
            Layer(config, ratio, index < config.num_hash_layers, dtype, shape.parallel)
            for index, ratio in enumerate(config.compress_ratios)
        )
        self.mtp = nn.ModuleList(NextN(config, dtype, shape.parallel) for _ in range(min(shape.num_steps, 1)))
        register_mixing(self, "hc_head", config, head=True)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, torch.float32)
        self.head = Weight((config.vocab_size, config.hidden_size), torch.float32)
        self.rope_plain = Rope(config.qk_rope_head_dim)
        self.rope_compress = Rope(config.qk_rope_head_dim)
        for name, layout in shape.stored_layouts:
            matrix = self.get_submodule(name.removesuffix(".weight"))
            assert isinstance(matrix, Weight), name
            matrix.store_as(layout)

    @property
    def nextn(self) -> NextN:
        layer = self.mtp[0]
        assert isinstance(layer, NextN)
        return layer

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Adopt `weights` without copying; names, dtypes and shapes must match, else `CheckpointError`."""
        own = dict(self.named_buffers())
        for name in sorted(own.keys() ^ weights.keys()):
            raise CheckpointError(
                "packed weights do not fit the graphs",
                key=name,
                expected="present" if name in own else "absent",
                found="absent" if name in own else "present",
            )
        for name, buffer in own.items():
            found = weights[name]
            if (found.dtype, found.shape) != (buffer.dtype, buffer.shape):
                raise CheckpointError(
                    "packed weight does not fit the graphs",
                    key=name,
                    expected=f"{buffer.dtype} {tuple(buffer.shape)}",
                    found=f"{found.dtype} {tuple(found.shape)}",
                )
            owner, _, leaf = name.rpartition(".")
            setattr(self.get_submodule(owner), leaf, found)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Token ids int64 `[T]` -> embeddings `[T, H]`."""
        return read_rows(self.embed.weight, ids)

    def target(self, ids: Tensor, window: Window, state: State) -> Tensor:
        """Ids `[T]`, T = B * V -> Target streams `[T, M, H]` before hc_head; writes every layer's state."""
        x = self.embed_tokens(ids)[:, None, :].expand(-1, self.config.hc_mult, -1)
        for index, (layer, ratio) in enumerate(zip(self.layers, self.config.compress_ratios, strict=True)):
            rope = self.rope_compress if ratio > 0 else self.rope_plain
            x = layer(x, ids, window, rope, layer_state(state, index, ratio))
        return x

    def target_hidden(self, streams: Tensor) -> Tensor:
        """Target streams `[T, M, H]` -> LM head input fp32 `[T, H]`."""
        return self.norm(hyper_head(streams, mixing(self, "hc_head"), self.config))

    def logits(self, hidden: Tensor) -> Tensor:
        """LM head, shared by Target and NextN, fp32: `[..., H]` -> `[..., vocab]`."""
        return functional.linear(hidden, self.head.weight)


def layer_state(state: State, index: int, ratio: int) -> LayerState:
    """The buffers of Target layer `index`."""
    names = ["window"]
    if ratio > 0:
        names += ["ring", "entries"]
    if ratio == 4:
        names += ["indexer_ring", "indexer_entries"]
    return LayerState(*(state.get_buffer(f"{name}_{index}") for name in names))


def derived_constants(config: ModelConfig) -> dict[str, Tensor]:
    """Weights that no checkpoint stores, under the names `Model` gives them."""
    return {
        "rope_plain.inverse_frequencies": inverse_frequencies(config, compressed=False),
        "rope_compress.inverse_frequencies": inverse_frequencies(config, compressed=True),
    }
