"""`ModelConfig` from every published spelling; one named error for each unusable value."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.graphs.config import ModelConfig, RopeScaling
from nextn.runtime.contract.errors import ArtifactError, CheckpointError, ExitCode
from nextn.weights.config_json import parse_model_config
from tests.graphs.releases import flash_config, pro_config

FILE = Path("somewhere/config.json")

OPTIONAL_KEYS = set(
    """
    architectures attention_bias attention_dropout bos_token_id eos_token_id expert_dtype hidden_act
    initializer_range num_key_value_heads num_nextn_predict_layers quantization_config rope_scaling
    scoring_func tie_word_embeddings topk_method torch_dtype transformers_version use_cache
    """.split()
)


def parse(**changes) -> ModelConfig:
    config, warnings = parse_model_config(flash_config() | changes, FILE)
    assert warnings == []
    return config


def refused(raw: dict) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        parse_model_config(raw, FILE)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.CHECKPOINT
    assert caught.value.file == str(FILE)
    return caught.value


def hugging_face_spelling() -> dict:
    """What `save_pretrained` of transformers 5.24 writes for the Flash architecture."""
    raw = flash_config()
    for key in ("compress_ratios", "num_hash_layers", "rope_scaling", "topk_method", "torch_dtype"):
        del raw[key]
    csa, hca = "compressed_sparse_attention", "heavily_compressed_attention"
    yarn = {
        "attention_factor": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "partial_rotary_factor": 0.125,
        "rope_theta": 160000.0,
        "rope_type": "yarn",
        "type": "yarn",
    }
    return raw | {
        "compress_rates": {csa: 4, hca: 128},
        "compress_rope_theta": 160000.0,
        "dtype": "bfloat16",
        "layer_types": ["sliding_attention"] * 2 + [csa, hca] * 20 + [csa],
        "mlp_bias": False,
        "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
        "output_router_logits": False,
        "pad_token_id": None,
        "partial_rotary_factor": 0.125,
        "rope_parameters": {
            "compress": yarn,
            "main": {"partial_rotary_factor": 0.125, "rope_theta": 10000.0, "rope_type": "default"},
        },
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
    }


def test_flash_release():
    config = parse()
    assert config.num_layers == 43
    assert config.compress_ratios[:4] == (0, 0, 4, 128)
    assert config.compress_ratios[-1] == 4
    assert (config.compress_ratios.count(4), config.compress_ratios.count(128)) == (21, 20)
    assert config.rope_scaling == RopeScaling(16.0, 65536, 32.0, 1.0)
    assert (config.rope_theta, config.compress_rope_theta) == (10000.0, 160000.0)
    assert (config.num_hash_layers, config.stream_width, config.eos_token_ids) == (3, 16384, (1,))


def test_pro_release():
    config, warnings = parse_model_config(pro_config(), FILE)
    assert warnings == []
    assert (config.num_layers, config.n_routed_experts, config.hidden_size) == (61, 384, 7168)
    assert (config.compress_ratios.count(4), config.compress_ratios.count(128)) == (30, 31)


def test_first_release_has_no_expert_dtype():
    raw = flash_config()
    del raw["expert_dtype"]
    assert parse_model_config(raw, FILE) == (parse(), [])


def test_hugging_face_spelling_is_the_same_architecture():
    config, warnings = parse_model_config(hugging_face_spelling(), FILE)
    assert warnings == []
    assert config == parse()
    assert config.sha256() == parse().sha256()


def test_partial_rotary_factor_stands_in_for_the_rotary_width():
    raw = hugging_face_spelling()
    del raw["qk_rope_head_dim"]
    assert parse_model_config(raw, FILE)[0].qk_rope_head_dim == 64


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_either_key_names_the_rope_scaling(key):
    scaling = flash_config()["rope_scaling"]
    del scaling["type"]
    assert parse(rope_scaling=scaling | {key: "yarn"}) == parse()


def test_no_rope_scaling():
    assert parse(rope_scaling=None).rope_scaling is None


@pytest.mark.parametrize("tail", [[], [0], [0, 0, 0]])
def test_ratios_past_the_layers_belong_to_drafts(tail):
    ratios = flash_config()["compress_ratios"][:43]
    assert parse(compress_ratios=ratios + tail) == parse()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scoring_func", "softmax"),
        ("topk_method", "greedy"),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("attention_bias", 0),
        ("mlp_bias", True),
        ("tie_word_embeddings", True),
        ("num_key_value_heads", 8),
        ("hidden_size", 0),
        ("hidden_size", -4096),
        ("hidden_size", 4096.5),
        ("hidden_size", "4096"),
        ("hidden_size", True),
        ("hidden_size", None),
        ("hidden_size", 2**31),
        ("vocab_size", 10**30),
        ("num_hidden_layers", 44.5),
        ("hc_sinkhorn_iters", 0),
        ("index_topk", 0),
        ("num_experts_per_tok", 257),
        ("num_hash_layers", 44),
        ("num_hash_layers", -1),
        ("o_groups", 7),
        ("qk_rope_head_dim", 63),
        ("qk_rope_head_dim", 514),
        ("index_head_dim", 32),
        ("rms_norm_eps", 0.0),
        ("rms_norm_eps", math.nan),
        ("hc_eps", math.inf),
        ("hc_eps", -1e-6),
        ("swiglu_limit", True),
        ("routed_scaling_factor", [1.5]),
        ("rope_theta", 10**400),
        ("norm_topk_prob", 1),
        ("num_nextn_predict_layers", 65),
        ("rope_theta", 1.0),
        ("compress_rope_theta", 1.0),
        ("compress_rope_theta", 1e300),
        ("num_nextn_predict_layers", -1),
        ("bos_token_id", 129280),
        ("eos_token_id", -1),
        ("eos_token_id", 129280),
        ("eos_token_id", True),
        ("eos_token_id", ["1"]),
        ("eos_token_id", list(range(9))),
        ("rope_scaling", "yarn"),
        ("compress_ratios", {}),
        ("compress_ratios", [0] * 42),
        ("compress_ratios", [0] * 43 + [4]),
    ],
    ids=lambda value: str(value)[:24],
)
def test_unusable_values_are_named(key, value):
    error = refused(flash_config() | {key: value})
    assert error.key == key
    assert error.expected is not None and error.found is not None


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"type": "longrope"}, "rope_scaling.type"),
        ({"type": ["yarn"]}, "rope_scaling.type"),
        ({"rope_type": "linear"}, "rope_scaling.rope_type"),
        ({"type": None}, "rope_scaling.rope_type"),
        ({"factor": 0.5}, "rope_scaling.factor"),
        ({"beta_fast": 1}, "rope_scaling.beta_fast"),
        ({"beta_fast": 1e308}, "rope_scaling.beta_fast"),
        ({"beta_slow": 1e-308}, "rope_scaling.beta_slow"),
        ({"original_max_position_embeddings": 65536.5}, "rope_scaling.original_max_position_embeddings"),
        ({"attention_factor": 1.277}, "rope_scaling.attention_factor"),
    ],
    ids=lambda value: str(value),
)
def test_unusable_rope_scaling_is_named(change, key):
    error = refused(flash_config() | {"rope_scaling": flash_config()["rope_scaling"] | change})
    assert error.key == key


@pytest.mark.parametrize("key", sorted(flash_config().keys() - OPTIONAL_KEYS))
def test_missing_architecture_keys_are_named(key):
    raw = flash_config()
    del raw[key]
    error = refused(raw)
    assert error.key == key
    assert error.found == "nothing"


def test_unknown_ratio_is_named_with_its_layer():
    """V4.1 ratios (1 and 2) must not load as something else."""
    ratios = flash_config()["compress_ratios"]
    ratios[5] = 2
    error = refused(flash_config() | {"compress_ratios": ratios})
    assert (error.key, error.expected, error.found) == ("compress_ratios[5]", "0, 4 or 128", "2")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"layer_types": ["sliding_attention"] * 42}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 42 + ["full_attention"]}, "layer_types[42]"),
        ({"layer_types": ["sliding_attention"] * 42 + [["x"]]}, "layer_types[42]"),
        ({"layer_types": None}, "compress_ratios"),
        ({"compress_ratios": [0] * 44}, "layer_types"),
        (
            {"compress_rates": {"compressed_sparse_attention": 8}},
            "compress_rates.compressed_sparse_attention",
        ),
        ({"mlp_layer_types": ["moe"] * 42 + ["hash_moe"]}, "mlp_layer_types"),
        ({"mlp_layer_types": ["moe"] * 42}, "mlp_layer_types"),
        ({"mlp_layer_types": None}, "num_hash_layers"),
        ({"num_hash_layers": 2}, "num_hash_layers"),
        ({"rope_theta": 20000}, "rope_theta"),
        ({"compress_rope_theta": 10000}, "compress_rope_theta"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"main": {"rope_theta": 1.0}}}, "rope_parameters.compress"),
        ({"rope_scaling": flash_config()["rope_scaling"] | {"factor": 4}}, "rope_scaling"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_contradictions_in_the_hugging_face_spelling_are_named(change, key):
    assert refused(hugging_face_spelling() | change).key == key


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        ("deepseek_v41", "DeepSeek-V4.1"),
        ("deepseek_v42", "later DeepSeek architecture"),
        ("deepseek_v4_dspark", "DSpark"),
        ("llama", "only DeepSeek-V4"),
        (None, "missing"),
        (["deepseek_v4"], "only DeepSeek-V4"),
    ],
)
def test_other_model_types_are_refused_in_one_sentence(model_type, said):
    error = refused(flash_config() | {"model_type": model_type})
    assert said in str(error)


@pytest.mark.parametrize("key", ["text_config", "vision_config"])
def test_a_config_of_several_models_is_refused_in_one_sentence(key):
    """V4.1 keeps the text model's values in an object of its own."""
    raw = flash_config() | {key: {}}
    del raw["num_hidden_layers"]
    error = refused(raw)
    assert error.key == key and "only text models" in str(error)
    assert "use a checkpoint of DeepSeek-V4 Flash or Pro" in str(error)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["DeepseekV41ForCausalLM"]},
        {"model_type": "deepseek_v41"},
        {"text_config": {"model_type": "deepseek_v41_text"}},
    ],
    ids=str,
)
def test_v41_is_told_by_its_nested_config(changes):
    """Its `model_type` may be absent; what it is and what to use instead is said all the same."""
    error = refused(flash_config() | {"text_config": {"hidden_size": 5120}, "vision_config": {}} | changes)
    assert "this is DeepSeek-V4.1" in error.message
    assert "use a checkpoint of DeepSeek-V4 Flash or Pro" in error.message


def test_unknown_keys_are_warned_about_and_dspark_keys_explained():
    """A DSpark config keeps `num_nextn_predict_layers` 1, so it decides nothing.

    https://github.com/ggml-org/llama.cpp/pull/25784
    """
    scaling = flash_config()["rope_scaling"] | {"mscale": 1.0}
    raw = flash_config() | {"dspark_block_size": 5, "surprise": 1, "rope_scaling": scaling}
    config, warnings = parse_model_config(raw, FILE)
    assert config == parse()
    assert len(warnings) == 3
    assert "surprise" in warnings[0]
    assert "rope_scaling.mscale" in warnings[1]
    assert "DSpark" in warnings[2]


@pytest.mark.parametrize(
    "key",
    """num_hidden_layers num_hash_layers n_routed_experts n_shared_experts num_experts_per_tok
    num_attention_heads o_groups index_n_heads head_dim index_head_dim hc_mult hc_sinkhorn_iters""".split(),
)
def test_absurd_counts_are_refused_at_once(key):
    """Each counts tensors, graph nodes or passes: a loop over two thousand million of them never ends."""
    error = refused(flash_config() | {key: 2**31 - 1})
    assert (error.key, error.found) == (key, str(2**31 - 1))
    canonical = parse().to_dict()
    if key in canonical:
        with pytest.raises(ArtifactError, match=key):
            ModelConfig.from_dict(canonical | {key: 2**31 - 1})


def test_absurdly_many_experts_in_all_are_refused():
    """Either count alone is allowed; together they are matrices to enumerate for minutes."""
    many = {"num_hidden_layers": 1024, "compress_ratios": [4] * 1024, "n_routed_experts": 8192}
    error = refused(flash_config() | many)
    assert (error.key, error.found) == ("n_routed_experts", "8192")


@pytest.mark.parametrize("key", ["compress_ratios", "layer_types", "mlp_layer_types"])
def test_absurdly_long_schedules_are_refused(key):
    error = refused(flash_config() | {key: [0] * 10_000})
    assert (error.key, error.found) == (key, "10000 entries")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(key=st.sampled_from(sorted(hugging_face_spelling())), value=JSON_VALUES, original=st.booleans())
def test_any_value_is_a_config_or_a_named_error(key, value, original):
    raw = (flash_config() if original else hugging_face_spelling()) | {key: value}
    try:
        config, _ = parse_model_config(raw, FILE)
    except CheckpointError as error:
        assert error.key is not None
    else:
        assert ModelConfig.from_dict(config.to_dict()) == config
