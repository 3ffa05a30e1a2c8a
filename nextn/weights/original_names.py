"""From the names a checkpoint uses to the original ones: one mapping for every published layout.

Hugging Face writes two layouts: its own module names, with stacked experts, and by default a hybrid that is
mostly original. The mapping is per name, so a folder that mixes layouts loads too, and two
tensors that claim one original name are refused by the caller.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType

_LAYER = re.compile(r"(?P<prefix>(?:layers|mtp)\.\d+\.)(?P<rest>.+)", re.DOTALL)

_GLOBALS = MappingProxyType(
    {
        "embed_tokens.weight": "embed.weight",
        "lm_head.weight": "head.weight",
        "hc_head.hc_fn": "hc_head_fn",
        "hc_head.hc_base": "hc_head_base",
        "hc_head.hc_scale": "hc_head_scale",
    }
)

_TOP_LEVEL = frozenset({*_GLOBALS.values(), "norm.weight"})

_INDEXER = "self_attn.compressor.indexer"

# Names inside one layer, without the final component (`.weight`).
_MODULES = MappingProxyType(
    {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "attn.norm": "attn.kv_norm",
        "self_attn.q_a_proj": "attn.wq_a",
        "self_attn.q_a_norm": "attn.q_norm",
        "self_attn.q_b_proj": "attn.wq_b",
        "self_attn.kv_proj": "attn.wkv",
        "self_attn.kv_norm": "attn.kv_norm",
        "self_attn.o_a_proj": "attn.wo_a",
        "self_attn.o_b_proj": "attn.wo_b",
        "self_attn.compressor.kv_proj": "attn.compressor.wkv",
        "self_attn.compressor.gate_proj": "attn.compressor.wgate",
        "self_attn.compressor.kv_norm": "attn.compressor.norm",
        f"{_INDEXER}.q_b_proj": "attn.indexer.wq_b",
        f"{_INDEXER}.scorer.weights_proj": "attn.indexer.weights_proj",
        f"{_INDEXER}.kv_proj": "attn.indexer.compressor.wkv",
        f"{_INDEXER}.gate_proj": "attn.indexer.compressor.wgate",
        f"{_INDEXER}.kv_norm": "attn.indexer.compressor.norm",
        "mlp.gate": "ffn.gate",
        "mlp.shared_experts.gate_proj": "ffn.shared_experts.w1",
        "mlp.shared_experts.down_proj": "ffn.shared_experts.w2",
        "mlp.shared_experts.up_proj": "ffn.shared_experts.w3",
    }
)

# Whole names inside one layer, of parameters that are not a module's `.weight`.
_PARAMETERS = MappingProxyType(
    {
        "self_attn.sinks": "attn.attn_sink",
        "self_attn.compressor.position_bias": "attn.compressor.ape",
        f"{_INDEXER}.position_bias": "attn.indexer.compressor.ape",
        "mlp.gate.e_score_correction_bias": "ffn.gate.bias",
        **{
            f"{place}_hc.{part}": f"hc_{place}_{part}"
            for place in ("attn", "ffn")
            for part in ("fn", "base", "scale")
        },
    }
)

# Experts stacked along dimension 0; within one expert these matrices follow each other by rows.
_STACKED = MappingProxyType(
    {"mlp.experts.gate_up_proj": ("w1", "w3"), "mlp.experts.down_proj": ("w2",)},
)


@dataclass(frozen=True)
class StackedExperts:
    """A tensor that holds the named matrices of every expert of one layer, `[experts, rows, columns]`."""

    prefix: str
    matrices: tuple[str, ...]

    def original_name(self, expert: int, matrix: str) -> str:
        return f"{self.prefix}{expert}.{matrix}.weight"


def original_name(name: str) -> str:
    """The original name of a tensor that is not stacked; unknown names come back without `model.`."""
    name = name.removeprefix("model.")
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return _GLOBALS.get(name, name)
    rest = layer["rest"]
    module, dot, leaf = rest.rpartition(".")
    renamed = _PARAMETERS.get(rest) or _MODULES.get(module, module) + dot + leaf
    return layer["prefix"] + renamed


def is_original_name(name: str) -> bool:
    """Whether tensors of this architecture have names like this one, an original name."""
    return _LAYER.fullmatch(name) is not None or name in _TOP_LEVEL


def is_draft_name(name: str) -> bool:
    """Whether a tensor of this name on disk belongs to the draft; all layouts call it `mtp`."""
    return name.removeprefix("model.").startswith("mtp.")


def stacked_experts(name: str) -> StackedExperts | None:
    """The matrices in a stacked expert tensor; None for every other name."""
    layer = _LAYER.fullmatch(name.removeprefix("model."))
    if layer is None or layer["rest"] not in _STACKED:
        return None
    return StackedExperts(layer["prefix"] + "ffn.experts.", _STACKED[layer["rest"]])
