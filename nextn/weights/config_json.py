"""Reading `config.json`: the architecture in the release's or a Hugging Face spelling."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from nextn.graphs.config import RATIOS, InvalidConfig, ModelConfig
from nextn.runtime.contract.blocks import MAX_EOS
from nextn.weights.config_rope import read_rotary
from nextn.weights.json_fields import FieldReader, read_json_object, whole_number

MODEL_TYPE = "deepseek_v4"

_USE = "use a checkpoint of DeepSeek-V4 Flash or Pro"
_V41 = f"this is DeepSeek-V4.1 (Engram, vision, shared caches), another architecture; {_USE}"

_RATIO_OF_LAYER_TYPE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}

_UNUSED_KEYS = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "dtype",
        "expert_dtype",  # tensor headers decide how weights are stored
        "initializer_range",
        "output_router_logits",
        "pad_token_id",
        "quantization_config",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)


def read_model_config(path: Path) -> tuple[ModelConfig, list[str]]:
    """The architecture in `config.json`, with the EOS ids of a `generation_config.json` beside it.

    Args:
        path: the file, or the folder that holds it.

    Returns:
        The config, and warnings for the user.

    Raises:
        CheckpointError: see `parse_model_config`.
    """
    file = path / "config.json" if path.is_dir() else path
    config, warnings = parse_model_config(read_json_object(file), file)
    generation_file = file.with_name("generation_config.json")
    # A dangling link is a file that was not downloaded; its EOS ids would be missed.
    if os.path.lexists(generation_file):
        reader = FieldReader(read_json_object(generation_file), generation_file)
        eos = _merged(config.eos_token_ids, _eos_token_ids(reader, config.vocab_size))
        if len(eos) > MAX_EOS:
            reader.refuse("eos_token_id", f"at most {MAX_EOS} EOS ids with config.json", list(eos))
        config = dataclasses.replace(config, eos_token_ids=eos)
    if not config.eos_token_ids:
        warnings.append(f"{file}: no eos_token_id, so generation ends by length or stop string only")
    return config, warnings


def parse_model_config(raw: Mapping[str, object], file: object) -> tuple[ModelConfig, list[str]]:
    """The architecture in a parsed `config.json`, in the release's or a Hugging Face spelling.

    Known keys without a meaning here are ignored; unknown keys become warnings.

    Args:
        raw: the JSON object.
        file: named in errors and warnings.

    Raises:
        CheckpointError: another model type, or a missing, ill-typed, unknown or inconsistent value of an
            architecture key; names file, key, expected and found.
    """
    reader = FieldReader(raw, file)
    _check_model_type(reader)
    _check_constants(reader)
    try:
        config = _read_architecture(reader)
    except InvalidConfig as fault:
        reader.refuse(fault.key, fault.expected, fault.found)
    draft_keys = [key for key in raw if key.startswith("dspark_")]
    warnings = [
        f"{file}: unknown key {key} ignored" for key in reader.unread_keys(_UNUSED_KEYS.union(draft_keys))
    ]
    if draft_keys:
        warnings.append(f"{file}: {draft_keys[0]} describes a DSpark draft, which cannot be used; ignored")
    return config, warnings


def _read_architecture(reader: FieldReader) -> ModelConfig:
    layers = reader.integer("num_hidden_layers")
    ratios = _compress_ratios(reader, layers)
    num_hash_layers = _num_hash_layers(reader, layers)
    rotary = read_rotary(reader, reader.integer("head_dim"))
    vocab_size = reader.integer("vocab_size")
    eos_token_ids = _eos_token_ids(reader, vocab_size)
    # Tensors decide which draft there is: a DSpark release counts its blocks here.
    nextn_layers = (
        reader.integer("num_nextn_predict_layers", minimum=0) if reader.has("num_nextn_predict_layers") else 0
    )
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=reader.integer("hidden_size"),
        compress_ratios=ratios,
        num_attention_heads=reader.integer("num_attention_heads"),
        head_dim=reader.integer("head_dim"),
        qk_rope_head_dim=rotary.dims,
        q_lora_rank=reader.integer("q_lora_rank"),
        o_groups=reader.integer("o_groups"),
        o_lora_rank=reader.integer("o_lora_rank"),
        sliding_window=reader.integer("sliding_window"),
        index_n_heads=reader.integer("index_n_heads"),
        index_head_dim=reader.integer("index_head_dim"),
        index_topk=reader.integer("index_topk"),
        moe_intermediate_size=reader.integer("moe_intermediate_size"),
        n_routed_experts=reader.integer("n_routed_experts"),
        n_shared_experts=reader.integer("n_shared_experts"),
        num_experts_per_tok=reader.integer("num_experts_per_tok"),
        num_hash_layers=num_hash_layers,
        routed_scaling_factor=reader.positive("routed_scaling_factor"),
        norm_topk_prob=reader.boolean("norm_topk_prob"),
        swiglu_limit=reader.positive("swiglu_limit"),
        hc_mult=reader.integer("hc_mult"),
        hc_sinkhorn_iters=reader.integer("hc_sinkhorn_iters"),
        hc_eps=reader.positive("hc_eps"),
        rms_norm_eps=reader.positive("rms_norm_eps"),
        rope_theta=rotary.theta,
        compress_rope_theta=rotary.compress_theta,
        rope_scaling=rotary.scaling,
        max_position_embeddings=reader.integer("max_position_embeddings"),
        bos_token_id=_bos_token_id(reader, vocab_size),
        eos_token_ids=eos_token_ids,
        num_nextn_predict_layers=nextn_layers,
    )


def _check_model_type(reader: FieldReader) -> None:
    for key in ("text_config", "vision_config"):
        if reader.has(key):
            message = _V41 if _names_v41(reader.raw) else f"only text models are supported; {_USE}"
            reader.refuse(key, "nothing", reader.raw[key], message)
    found = reader.value("model_type", MODEL_TYPE)
    if found == MODEL_TYPE:
        return
    name = str(found).lower()
    if "dspark" in name:
        reader.refuse(
            "model_type", MODEL_TYPE, found, "DSpark drafts are a different draft model and not supported"
        )
    if _names_v41({"model_type": found}):
        reader.refuse("model_type", MODEL_TYPE, found, _V41)
    if name.startswith("deepseek_v4"):
        message = f"this later DeepSeek architecture is not supported; {_USE}"
        reader.refuse("model_type", MODEL_TYPE, found, message)
    reader.refuse("model_type", MODEL_TYPE, found, f"only DeepSeek-V4 is supported; {_USE}")


def _names_v41(raw: Mapping[str, object]) -> bool:
    """Whether a config is that of DeepSeek-V4.1, which nests the config of its text model."""
    nested = raw.get("text_config")
    inner = nested.get("model_type") if isinstance(nested, dict) else None
    return any(
        "v41" in str(value).lower() for value in (raw.get("model_type"), raw.get("architectures"), inner)
    )


def _check_constants(reader: FieldReader) -> None:
    reader.constant("scoring_func", "sqrtsoftplus")
    reader.constant("topk_method", "noaux_tc")
    reader.constant("hidden_act", "silu")
    reader.constant("attention_bias", False)
    reader.constant("mlp_bias", False)
    reader.constant("tie_word_embeddings", False)
    reader.constant("num_key_value_heads", 1)
    reader.constant("compress_rate_csa", 4)
    reader.constant("compress_rate_hca", 128)


def _compress_ratios(reader: FieldReader, layers: int) -> tuple[int, ...]:
    """One ratio per Target layer; entries past them belong to draft layers and must be 0."""
    by_type = _ratios_of_layer_types(reader, layers) if reader.has("layer_types") else None
    if by_type is not None and not reader.has("compress_ratios"):
        return by_type
    ratios = reader.integers("compress_ratios")
    if len(ratios) < layers:
        reader.refuse("compress_ratios", f"at least {layers} entries", f"{len(ratios)} entries")
    _check_ratios(reader, ratios)
    if any(ratios[layers:]):
        reader.refuse("compress_ratios", f"0 in every entry past layer {layers - 1}", list(ratios[layers:]))
    if by_type is not None and by_type != ratios[:layers]:
        reader.refuse("layer_types", "the schedule of compress_ratios", "another schedule")
    return ratios[:layers]


def _check_ratios(reader: FieldReader, ratios: tuple[int, ...]) -> None:
    for layer, ratio in enumerate(ratios):
        if ratio not in RATIOS:
            reader.refuse(f"compress_ratios[{layer}]", "0, 4 or 128", ratio)


def _ratios_of_layer_types(reader: FieldReader, layers: int) -> tuple[int, ...]:
    names = reader.array("layer_types")
    if len(names) != layers:
        reader.refuse("layer_types", f"{layers} entries", f"{len(names)} entries")
    for layer, name in enumerate(names):
        if not isinstance(name, str) or name not in _RATIO_OF_LAYER_TYPE:
            reader.refuse(f"layer_types[{layer}]", "one of " + ", ".join(_RATIO_OF_LAYER_TYPE), name)
    rates = reader.child("compress_rates")
    if rates is not None:
        for name, ratio in _RATIO_OF_LAYER_TYPE.items():
            rates.constant(name, ratio)
    return tuple(_RATIO_OF_LAYER_TYPE[str(name)] for name in names)


def _num_hash_layers(reader: FieldReader, layers: int) -> int:
    if not reader.has("mlp_layer_types"):
        return reader.integer("num_hash_layers", minimum=0)
    kinds = reader.array("mlp_layer_types")
    count = kinds.count("hash_moe")
    if kinds != ["hash_moe"] * count + ["moe"] * (layers - count):
        reader.refuse("mlp_layer_types", f"{layers} entries, hash_moe first and then moe", kinds)
    if reader.has("num_hash_layers") and reader.integer("num_hash_layers", minimum=0) != count:
        reader.refuse("num_hash_layers", f"{count} as in mlp_layer_types", reader.raw["num_hash_layers"])
    return count


def _bos_token_id(reader: FieldReader, vocab_size: int) -> int | None:
    if not reader.has("bos_token_id"):
        return None
    return reader.integer("bos_token_id", minimum=0, maximum=vocab_size - 1)


def _eos_token_ids(reader: FieldReader, vocab_size: int) -> tuple[int, ...]:
    if not reader.has("eos_token_id"):
        return ()
    if whole_number(reader.raw["eos_token_id"]) is not None:
        return (reader.integer("eos_token_id", minimum=0, maximum=vocab_size - 1),)
    eos = _merged(reader.integers("eos_token_id", minimum=0, maximum=vocab_size - 1))
    if len(eos) > MAX_EOS:
        reader.refuse("eos_token_id", f"at most {MAX_EOS} EOS ids", list(eos))
    return eos


def _merged(*groups: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token for group in groups for token in group))
