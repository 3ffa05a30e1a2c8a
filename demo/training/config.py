"""Architecture of the demo model, spelled like the config.json of the original DeepSeek-V4 release."""

from types import SimpleNamespace

BOS, EOS, PAD = 257, 258, 259

CONFIG: dict = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "hc_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 128,
    "index_head_dim": 32,
    "index_n_heads": 16,
    "index_topk": 8,
    "initializer_range": 0.02,
    "max_position_embeddings": 2048,
    "model_type": "deepseek_v4",
    "moe_intermediate_size": 96,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 5,
    "num_hash_layers": 1,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_groups": 2,
    "o_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 8,
    "swiglu_limit": 10.0,
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 260,
    "compress_rope_theta": 160000,
    "compress_ratios": [0, 128, 4, 128, 4, 0],
}


def model_config() -> SimpleNamespace:
    """The architecture as attributes, for use inside the modules."""
    return SimpleNamespace(**CONFIG)
