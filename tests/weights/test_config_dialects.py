"""`config.json` as clients and converters really write it, read as Hugging Face reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import DeepseekV4Config

from nextn.graphs.config import ModelConfig
from nextn.weights.config_json import parse_model_config, read_model_config
from tests.weights.folders import tiny_config

YARN = {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 256}


def parsed(config: dict[str, Any]) -> ModelConfig:
    return parse_model_config(config, "config.json")[0]


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_byte_order_mark_is_no_content(tmp_path: Path, name: str) -> None:
    """Editors of Windows write one."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7]}')
    plain = read_model_config(tmp_path)
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
    assert read_model_config(tmp_path) == plain


def test_whole_numbers_may_be_written_as_floats() -> None:
    """Converters that pass numbers through another language write 65536.0."""

    def floats(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: floats(item) for key, item in value.items()}
        if isinstance(value, list):
            return [floats(item) for item in value]
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    assert parsed(floats(tiny_config())) == parsed(tiny_config())


@pytest.mark.parametrize("value", [64.5, 1e300, float("inf"), float("nan")])
def test_other_floats_are_no_whole_numbers(value: float) -> None:
    with pytest.raises(Exception, match="key hidden_size, expected an integer"):
        parsed(tiny_config() | {"hidden_size": value})


@pytest.mark.parametrize(
    "scaling", [YARN, {"beta_fast": 16, **YARN}, {"beta_slow": 2, **YARN}, {"rope_type": "default"}]
)
def test_flat_rope_parameters_of_transformers_5(scaling: dict[str, Any]) -> None:
    """One object for the compressed layers; the bases stay where the release has them."""
    config = tiny_config() | {"rope_parameters": {"rope_theta": 10000.0, **scaling}}
    del config["rope_scaling"]
    found = parsed(config)
    expected = DeepseekV4Config(**config).rope_parameters
    assert found.rope_theta == expected["main"]["rope_theta"]
    compress = expected["compress"]
    assert found.compress_rope_theta == compress["rope_theta"]
    if compress["rope_type"] == "default":
        assert found.rope_scaling is None
        return
    assert found.rope_scaling is not None
    assert found.rope_scaling.factor == compress["factor"]
    assert found.rope_scaling.original_max_position == compress["original_max_position_embeddings"]
    # transformers' `_compute_yarn_parameters` takes 32 and 1 where a config has none.
    assert found.rope_scaling.beta_fast == compress.get("beta_fast", 32)
    assert found.rope_scaling.beta_slow == compress.get("beta_slow", 1)


@pytest.mark.parametrize("key", ["beta_fast", "beta_slow"])
def test_yarn_without_its_ramp(key: str) -> None:
    config = tiny_config()
    assert config["rope_scaling"][key] == {"beta_fast": 32, "beta_slow": 1}[key]
    without = {name: value for name, value in config["rope_scaling"].items() if name != key}
    assert parsed(config | {"rope_scaling": without}) == parsed(config)
    assert parsed(config | {"rope_scaling": {**without, key: None}}) == parsed(config)
