"""Named tiny DeepSeek-V4 shapes, as `config.json` dictionaries in the release's own spelling.

Each case exists for a fault that another case would not show; its `reason` says which. They keep at least
16 index heads, because with few heads the indexer's ReLU makes exact score ties at zero common, and then
even one model's one-go and step-wise results differ.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]

BASE_CONFIG: Config = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "compress_ratios": [0, 4, 128, 0],
    "compress_rope_theta": 160000,
    "eos_token_id": 1,
    "hc_eps": 1e-06,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "index_head_dim": 32,
    "index_n_heads": 16,
    "index_topk": 16,
    "initializer_range": 0.02,
    "max_position_embeddings": 4096,
    "model_type": "deepseek_v4",
    "moe_intermediate_size": 32,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_groups": 2,
    "o_lora_rank": 16,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 256,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 8,
    # The release clamps at 10; activations of random weights only reach a lower limit.
    "swiglu_limit": 2.0,
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "torch_dtype": "float32",
    "transformers_version": "4.57.1",
    "use_cache": True,
    "vocab_size": 257,
}


@dataclass(frozen=True)
class ShapeCase:
    """One tiny architecture: `changes` on top of `BASE_CONFIG`."""

    name: str
    reason: str
    changes: Config = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """A fresh `config.json` dictionary, safe to alter."""
        config = {**copy.deepcopy(BASE_CONFIG), **copy.deepcopy(self.changes)}
        # The last ratio belongs to the NextN layer.
        config["num_hidden_layers"] = len(config["compress_ratios"]) - 1
        return config


_ALL_CASES = (
    ShapeCase("tiny", "one layer of each kind, the default everywhere"),
    ShapeCase(
        "window_only",
        "no compressor at all: the smallest thing that decodes",
        {"compress_ratios": [0, 0, 0], "hc_mult": 2, "vocab_size": 101, "n_routed_experts": 4},
    ),
    ShapeCase(
        "two_streams",
        "hc_mult 2, four output groups, two hash layers",
        {
            "compress_ratios": [0, 4, 4, 0],
            "hc_mult": 2,
            "o_groups": 4,
            "num_attention_heads": 8,
            "num_hash_layers": 2,
            "sliding_window": 16,
            "vocab_size": 199,
        },
    ),
    ShapeCase(
        "three_streams",
        "hc_mult 3 and nothing else a power of two: 7 experts, 3 of them chosen, 6 heads of 48, one group",
        {
            "compress_ratios": [0, 128, 4, 0],
            "hc_mult": 3,
            "head_dim": 48,
            "hidden_size": 72,
            "num_attention_heads": 6,
            "n_routed_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "o_groups": 1,
            "o_lora_rank": 24,
            "q_lora_rank": 40,
            "index_head_dim": 24,
            "index_n_heads": 17,
            "vocab_size": 131,
        },
    ),
    ShapeCase(
        "release_window",
        "the release's window 128 and head shape ratios; prompts shorter than one window",
        {
            "compress_ratios": [0, 0, 4, 128, 0],
            "head_dim": 128,
            "qk_rope_head_dim": 64,
            "index_head_dim": 64,
            "sliding_window": 128,
            "num_hash_layers": 3,
            "vocab_size": 307,
        },
    ),
    ShapeCase(
        "c4_twice",
        "two C4 layers in a row and no window-only layer: errors of one compressor reach the next",
        {"compress_ratios": [4, 4, 0], "vocab_size": 163},
    ),
    ShapeCase(
        "c128_then_c4",
        "a C128 layer feeding a C4 layer, no window-only layer, no hash layer",
        {"compress_ratios": [128, 4, 0], "num_hash_layers": 0, "sliding_window": 16, "vocab_size": 211},
    ),
    ShapeCase(
        "pro_like",
        "first ratios 128, 128 as in Pro: a NextN layer that borrows the settings of layer 1 breaks here",
        {
            "compress_ratios": [128, 128, 4, 128, 4, 0],
            "num_hash_layers": 3,
            "num_attention_heads": 8,
            "n_routed_experts": 9,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 2.5,
            "o_groups": 4,
            "vocab_size": 223,
        },
    ),
    ShapeCase(
        "narrow_index",
        "index_topk 3 of many entries: the selection really selects; 32 index heads keep it free of ties",
        {"compress_ratios": [0, 4, 0], "index_topk": 3, "index_n_heads": 32, "vocab_size": 151},
    ),
)

CASES: dict[str, ShapeCase] = {case.name: case for case in _ALL_CASES}

QUICK = ShapeCase(
    "quick",
    "what tiny has in two layers (only NextN's has no compressor), and fewer iterations that balance streams",
    {"compress_ratios": [4, 128, 0], "hc_sinkhorn_iters": 4},
)
"""No case of its own: for tests whose time is that of exporting, converting or compiling every operator."""
