"""`ModelConfig`: the architecture, one frozen dataclass for every published spelling of `config.json`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nextn.graphs.config_parse import LARGEST_EXPERTS, FieldReader, is_integer, read_json_object
from nextn.graphs.config_rope import RopeScaling, Rotary, read_rotary, read_theta, read_yarn
from nextn.runtime.contract.blocks import MAX_EOS
from nextn.runtime.contract.errors import ArtifactError

__all__ = [
    "LayerKind",
    "ModelConfig",
    "RopeScaling",
    "parse_model_config",
    "read_json_object",
    "read_model_config",
]

LayerKind = Literal["swa", "c4", "c128"]

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


@dataclass(frozen=True)
class ModelConfig:
    """DeepSeek-V4 architecture. Field units are elements unless the name says otherwise."""

    vocab_size: int
    hidden_size: int
    compress_ratios: tuple[int, ...]
    """One of 0, 4, 128 per Target layer; the NextN layer is always ratio 0."""
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    num_hash_layers: int
    routed_scaling_factor: float
    norm_topk_prob: bool
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    num_nextn_predict_layers: int

    @property
    def num_layers(self) -> int:
        return len(self.compress_ratios)

    @property
    def stream_width(self) -> int:
        """Width of the flattened hyper-connection streams, `hc_mult * hidden_size`."""
        return self.hc_mult * self.hidden_size

    def to_dict(self) -> dict[str, object]:
        """JSON values under the field names; the form a manifest keeps and `from_dict` reads."""
        values = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    def sha256(self) -> str:
        """Hex digest of the canonical JSON form: equal for all spellings of one architecture."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def from_dict(cls, raw: Mapping[str, object], file: object = None) -> ModelConfig:
        """The inverse of `to_dict`.

        Raises:
            ArtifactError: a value is missing, ill-typed or inconsistent; names `file` and the key.
        """
        reader = FieldReader(raw, file, ArtifactError)
        scaling = reader.child("rope_scaling")
        ratios = reader.integers("compress_ratios")
        _check_ratios(reader, ratios)
        return _build(
            reader,
            _Derived(
                compress_ratios=ratios,
                num_hash_layers=reader.integer("num_hash_layers", minimum=0),
                rotary=Rotary(
                    dims=reader.integer("qk_rope_head_dim"),
                    theta=read_theta(reader, "rope_theta"),
                    compress_theta=read_theta(reader, "compress_rope_theta"),
                    scaling=None if scaling is None else read_yarn(scaling, "original_max_position"),
                ),
                eos_token_ids=reader.integers("eos_token_ids"),
            ),
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
    # A link to nowhere is a file that was not downloaded; its EOS ids would be missed.
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

    Known keys without a meaning here are ignored; unknown keys become warnings (spec sections 1.1-1.6, 2.4).

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
    layers = reader.integer("num_hidden_layers")
    config = _build(
        reader,
        _Derived(
            compress_ratios=_compress_ratios(reader, layers),
            num_hash_layers=_num_hash_layers(reader, layers),
            rotary=read_rotary(reader, reader.integer("head_dim")),
            eos_token_ids=_eos_token_ids(reader, reader.integer("vocab_size")),
        ),
    )
    draft_keys = [key for key in raw if key.startswith("dspark_")]
    warnings = [
        f"{file}: unknown key {key} ignored" for key in reader.unread_keys(_UNUSED_KEYS.union(draft_keys))
    ]
    if draft_keys:
        warnings.append(f"{file}: {draft_keys[0]} describes a DSpark draft, which cannot be used; ignored")
    return config, warnings


@dataclass(frozen=True)
class _Derived:
    """Fields whose spelling differs between sources; the others are read under their own names."""

    compress_ratios: tuple[int, ...]
    num_hash_layers: int
    rotary: Rotary
    eos_token_ids: tuple[int, ...]


def _build(reader: FieldReader, derived: _Derived) -> ModelConfig:
    # Tensors decide what the draft is: a DSpark release counts its blocks here.
    nextn_layers = (
        reader.integer("num_nextn_predict_layers", minimum=0) if reader.has("num_nextn_predict_layers") else 0
    )
    vocab_size = reader.integer("vocab_size")
    config = ModelConfig(
        vocab_size=vocab_size,
        hidden_size=reader.integer("hidden_size"),
        compress_ratios=derived.compress_ratios,
        num_attention_heads=reader.integer("num_attention_heads"),
        head_dim=reader.integer("head_dim"),
        qk_rope_head_dim=derived.rotary.dims,
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
        num_hash_layers=derived.num_hash_layers,
        routed_scaling_factor=reader.positive("routed_scaling_factor"),
        norm_topk_prob=reader.boolean("norm_topk_prob"),
        swiglu_limit=reader.positive("swiglu_limit"),
        hc_mult=reader.integer("hc_mult"),
        hc_sinkhorn_iters=reader.integer("hc_sinkhorn_iters"),
        hc_eps=reader.positive("hc_eps"),
        rms_norm_eps=reader.positive("rms_norm_eps"),
        rope_theta=derived.rotary.theta,
        compress_rope_theta=derived.rotary.compress_theta,
        rope_scaling=derived.rotary.scaling,
        max_position_embeddings=reader.integer("max_position_embeddings"),
        bos_token_id=_bos_token_id(reader, vocab_size),
        eos_token_ids=derived.eos_token_ids,
        num_nextn_predict_layers=nextn_layers,
    )
    _check_consistency(config, reader)
    return config


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
    """Whether a config is that of DeepSeek-V4.1, which nests its text model's (spec section 1.6)."""
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


def _check_consistency(config: ModelConfig, reader: FieldReader) -> None:
    if config.num_attention_heads % config.o_groups:
        reader.refuse("o_groups", f"a divisor of {config.num_attention_heads} heads", config.o_groups)
    if config.qk_rope_head_dim % 2 or config.qk_rope_head_dim > config.head_dim:
        expected = f"an even number up to head_dim {config.head_dim}"
        reader.refuse("qk_rope_head_dim", expected, config.qk_rope_head_dim)
    if config.index_head_dim < config.qk_rope_head_dim:
        reader.refuse("index_head_dim", f"at least {config.qk_rope_head_dim}", config.index_head_dim)
    if config.num_experts_per_tok > config.n_routed_experts:
        expected = f"at most {config.n_routed_experts} experts"
        reader.refuse("num_experts_per_tok", expected, config.num_experts_per_tok)
    if config.num_layers * config.n_routed_experts > LARGEST_EXPERTS:
        expected = f"at most {LARGEST_EXPERTS} in all of the {config.num_layers} layers"
        reader.refuse("n_routed_experts", expected, config.n_routed_experts)
    if config.num_hash_layers > config.num_layers:
        reader.refuse("num_hash_layers", f"at most {config.num_layers} layers", config.num_hash_layers)
    if len(config.eos_token_ids) > MAX_EOS:
        reader.refuse("eos_token_id", f"at most {MAX_EOS} EOS ids", list(config.eos_token_ids))


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
        if ratio not in _RATIO_OF_LAYER_TYPE.values():
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
    if is_integer(reader.raw["eos_token_id"]):
        return (reader.integer("eos_token_id", minimum=0, maximum=vocab_size - 1),)
    return _merged(reader.integers("eos_token_id", minimum=0, maximum=vocab_size - 1))


def _merged(*groups: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token for group in groups for token in group))
