"""`ModelConfig`: its own checks, its hash, and the JSON values that manifests and workers keep."""

import copy
import dataclasses
import json
import math

import pytest

from nextn.graphs.config import InvalidConfig, ModelConfig, RopeScaling
from nextn.runtime.contract.errors import ArtifactError
from nextn.weights.config_json import parse_model_config
from tests.graphs.releases import flash_config, pro_config


def parse() -> ModelConfig:
    return parse_model_config(flash_config(), "config.json")[0]


@pytest.mark.parametrize("raw", [flash_config(), pro_config(), flash_config() | {"rope_scaling": None}])
def test_json_values_return_the_same_config(raw):
    config, _ = parse_model_config(raw, "config.json")
    text = json.dumps(config.to_dict())
    again = ModelConfig.from_dict(json.loads(text), "manifest.json")
    assert again == config
    assert again.sha256() == config.sha256()


def test_hash_depends_on_every_field():
    config = parse()
    hashes = {config.sha256()}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        other = copy.copy(config)
        # Past the checks of the class: the hash must not depend on them.
        object.__setattr__(
            other,
            item.name,
            not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else None,
        )
        hashes.add(other.sha256())
    assert len(hashes) == 1 + len(dataclasses.fields(config))


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("hidden_size", {"hidden_size": 0}),
        ("hc_mult", {"hc_mult": 9}),
        ("hc_eps", {"hc_eps": math.inf}),
        ("rms_norm_eps", {"rms_norm_eps": math.nan}),
        ("rope_theta", {"rope_theta": 1.0}),
        ("compress_ratios", {"compress_ratios": ()}),
        ("compress_ratios[1]", {"compress_ratios": (0, 3)}),
        ("bos_token_id", {"bos_token_id": 129280}),
        ("eos_token_ids", {"eos_token_ids": tuple(range(20))}),
        ("eos_token_ids", {"eos_token_ids": (-1,)}),
        ("rope_scaling.beta_fast", {"rope_scaling": RopeScaling(16.0, 65536, 1.0, 1.0)}),
        ("rope_scaling", {"rope_scaling": RopeScaling(0.5, 65536, 32.0, 1.0)}),
        ("qk_rope_head_dim", {"qk_rope_head_dim": 63}),
        ("index_head_dim", {"index_head_dim": 32}),
        ("num_experts_per_tok", {"n_routed_experts": 5}),
        ("num_hash_layers", {"num_hash_layers": 44}),
    ],
)
def test_a_config_checks_itself(key, changes):
    with pytest.raises(InvalidConfig) as caught:
        dataclasses.replace(parse(), **changes)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("key", "value"), [("head_dim", "512"), ("compress_ratios", [3]), ("o_groups", 7), ("surprise", 1)]
)
def test_a_damaged_value_is_an_artifact_fault(key, value):
    with pytest.raises(ArtifactError) as caught:
        ModelConfig.from_dict(parse().to_dict() | {key: value}, "manifest.json")
    assert caught.value.file == "manifest.json"
    assert caught.value.key.startswith(key)
