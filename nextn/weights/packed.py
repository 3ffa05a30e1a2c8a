"""The table of packed weights: names, shapes and roles as graphs bind them, and the parts of each.

Source: docs/design.md, "Packed weights".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch

from nextn.graphs.config import ModelConfig

Role = Literal["matrix", "float32", "index"]
"""`matrix` is stored in the compute dtype, `float32` always as float32, `index` as int64."""

NEXTN_PREFIX = "mtp.0."


@dataclass(frozen=True)
class SourcePart:
    """A checkpoint tensor under its original name, with the shape the architecture gives it."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PackedWeight:
    """One weight as graphs bind it: the row-major concatenation of its parts, viewed as `shape`."""

    name: str
    role: Role
    shape: tuple[int, ...]
    parts: tuple[SourcePart, ...]

    def stored_dtype(self, compute_dtype: torch.dtype) -> torch.dtype:
        """The dtype of this weight in a file packed for `compute_dtype` (float32 or bfloat16)."""
        if self.role == "matrix":
            return compute_dtype
        return torch.float32 if self.role == "float32" else torch.int64

    def nbytes(self, compute_dtype: torch.dtype) -> int:
        return prod(self.shape) * self.stored_dtype(compute_dtype).itemsize


def scales_name(weight: str) -> str:
    """The tensor with the scales of a weight that is stored as codes."""
    return weight.removesuffix("weight") + "scales"


def packed_weights(config: ModelConfig, with_nextn: bool) -> list[PackedWeight]:
    """Every weight that graphs of `config` bind, in file order.

    Each checkpoint tensor occurs as a part of exactly one weight.

    Args:
        config: the architecture.
        with_nextn: whether to include the NextN layer, `mtp.0.*`.
    """
    return list(iterate_packed_weights(config, with_nextn))


def iterate_packed_weights(config: ModelConfig, with_nextn: bool) -> Iterator[PackedWeight]:
    """`packed_weights` one at a time, so that a check can stop before an absurd config is enumerated."""
    vocabulary = (config.vocab_size, config.hidden_size)
    yield _single("embed.weight", "matrix", vocabulary)
    yield _single("head.weight", "float32", vocabulary)
    yield _single("norm.weight", "float32", (config.hidden_size,))
    yield from _stream_head("", config)
    for index, ratio in enumerate(config.compress_ratios):
        yield from _layer(f"layers.{index}.", config, ratio, hash_routed=index < config.num_hash_layers)
    if with_nextn:
        yield from nextn_weights(config)


def _single(name: str, role: Role, shape: tuple[int, ...]) -> PackedWeight:
    return PackedWeight(name, role, shape, (SourcePart(name, shape),))


def _stream_head(prefix: str, config: ModelConfig) -> Iterator[PackedWeight]:
    yield _single(f"{prefix}hc_head_fn", "float32", (config.hc_mult, config.stream_width))
    yield _single(f"{prefix}hc_head_base", "float32", (config.hc_mult,))
    yield _single(f"{prefix}hc_head_scale", "float32", (1,))


def nextn_weights(config: ModelConfig) -> Iterator[PackedWeight]:
    """The NextN layer alone, `mtp.0.*`."""
    hidden = config.hidden_size
    for name in ("e_proj", "h_proj"):
        yield _single(f"{NEXTN_PREFIX}{name}.weight", "matrix", (hidden, hidden))
    for name in ("enorm", "hnorm", "norm"):
        yield _single(f"{NEXTN_PREFIX}{name}.weight", "float32", (hidden,))
    yield from _stream_head(NEXTN_PREFIX, config)
    yield from _layer(NEXTN_PREFIX, config, ratio=0, hash_routed=False)


def _layer(prefix: str, config: ModelConfig, ratio: int, hash_routed: bool) -> Iterator[PackedWeight]:
    for name in ("attn_norm", "ffn_norm"):
        yield _single(f"{prefix}{name}.weight", "float32", (config.hidden_size,))
    # Per stream: a pre weight, a post weight and a row of the mixing matrix
    # (docs/mathematics.md, "hyper_pre").
    mixes = (2 + config.hc_mult) * config.hc_mult
    for name in ("hc_attn", "hc_ffn"):
        yield _single(f"{prefix}{name}_fn", "float32", (mixes, config.stream_width))
        yield _single(f"{prefix}{name}_base", "float32", (mixes,))
        yield _single(f"{prefix}{name}_scale", "float32", (3,))
    yield from _attention(f"{prefix}attn.", config, ratio)
    yield from _experts(f"{prefix}ffn.", config, hash_routed)


def _attention(prefix: str, config: ModelConfig, ratio: int) -> Iterator[PackedWeight]:
    hidden, head_dim = config.hidden_size, config.head_dim
    query_width = config.num_attention_heads * head_dim
    group_rows = config.o_groups * config.o_lora_rank
    matrices = {
        "wq_a": (config.q_lora_rank, hidden),
        "wq_b": (query_width, config.q_lora_rank),
        "wkv": (head_dim, hidden),
        "wo_a": (group_rows, query_width // config.o_groups),
        "wo_b": (hidden, group_rows),
    }
    for name, shape in matrices.items():
        yield _single(f"{prefix}{name}.weight", "matrix", shape)
    yield _single(f"{prefix}q_norm.weight", "float32", (config.q_lora_rank,))
    yield _single(f"{prefix}kv_norm.weight", "float32", (head_dim,))
    yield _single(f"{prefix}attn_sink", "float32", (config.num_attention_heads,))
    if ratio:
        yield from _compressor(f"{prefix}compressor.", hidden, head_dim, ratio)
    if ratio == 4:
        indexer = f"{prefix}indexer."
        index_width = config.index_n_heads * config.index_head_dim
        yield _single(f"{indexer}wq_b.weight", "matrix", (index_width, config.q_lora_rank))
        yield _single(f"{indexer}weights_proj.weight", "matrix", (config.index_n_heads, hidden))
        yield from _compressor(f"{indexer}compressor.", hidden, config.index_head_dim, ratio)


def _compressor(prefix: str, hidden: int, width: int, ratio: int) -> Iterator[PackedWeight]:
    # Ratio 4 overlaps: every token feeds its own entry and the next one (docs/mathematics.md, "Compressor").
    rows = 2 * width if ratio == 4 else width
    halves = tuple(SourcePart(f"{prefix}{name}.weight", (rows, hidden)) for name in ("wkv", "wgate"))
    yield PackedWeight(f"{prefix}wkv_gate.weight", "float32", (2 * rows, hidden), halves)
    yield _single(f"{prefix}ape", "float32", (ratio, rows))
    yield _single(f"{prefix}norm.weight", "float32", (width,))


def _experts(prefix: str, config: ModelConfig, hash_routed: bool) -> Iterator[PackedWeight]:
    hidden, inner, experts = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
    yield _single(f"{prefix}gate.weight", "float32", (experts, hidden))
    if hash_routed:
        yield _single(f"{prefix}gate.tid2eid", "index", (config.vocab_size, config.num_experts_per_tok))
    else:
        yield _single(f"{prefix}gate.bias", "float32", (experts,))
    routed = [f"{prefix}experts.{expert}" for expert in range(experts)]
    up, down = _gated_mlp(routed, hidden, inner)
    yield PackedWeight(f"{prefix}experts.w13.weight", "matrix", (experts, 2 * inner, hidden), up)
    yield PackedWeight(f"{prefix}experts.w2.weight", "matrix", (experts, hidden, inner), down)
    inner *= config.n_shared_experts
    up, down = _gated_mlp([f"{prefix}shared_experts"], hidden, inner)
    yield PackedWeight(f"{prefix}shared_experts.w13.weight", "matrix", (2 * inner, hidden), up)
    yield PackedWeight(f"{prefix}shared_experts.w2.weight", "matrix", (hidden, inner), down)


def _gated_mlp(
    experts: list[str], hidden: int, inner: int
) -> tuple[tuple[SourcePart, ...], tuple[SourcePart, ...]]:
    """The parts of `w13` (per expert w1 rows, then w3 rows) and of `w2`."""
    up = tuple(
        SourcePart(f"{expert}.{name}.weight", (inner, hidden)) for expert in experts for name in ("w1", "w3")
    )
    down = tuple(SourcePart(f"{expert}.w2.weight", (hidden, inner)) for expert in experts)
    return up, down
