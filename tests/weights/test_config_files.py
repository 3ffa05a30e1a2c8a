"""`config.json` and `generation_config.json` as files: what is read, and what is refused by name."""

import json
from pathlib import Path

import pytest

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.config_json import read_model_config
from tests.graphs.releases import flash_config


def write(folder: Path, config: dict, generation: dict | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_generation_config_adds_eos_ids(tmp_path):
    write(tmp_path, flash_config() | {"eos_token_id": [1, 7]}, {"eos_token_id": [7, 9]})
    assert read_model_config(tmp_path)[0].eos_token_ids == (1, 7, 9)
    assert read_model_config(tmp_path / "config.json")[0].eos_token_ids == (1, 7, 9)


def test_bad_generation_config_is_named(tmp_path):
    write(tmp_path, flash_config(), {"eos_token_id": "stop"})
    with pytest.raises(CheckpointError) as caught:
        read_model_config(tmp_path)
    assert caught.value.file == str(tmp_path / "generation_config.json")
    assert caught.value.key == "eos_token_id"


def test_no_eos_is_warned_about(tmp_path):
    config, warnings = read_model_config(write(tmp_path, flash_config() | {"eos_token_id": None}))
    assert config.eos_token_ids == ()
    assert ["eos_token_id" in warning for warning in warnings] == [True]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe{}", b"[" * 100_000, b'{"vocab_size": ' + b"9" * 5000 + b"}"]
)
def test_unreadable_config_is_named(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_model_config(tmp_path)
    assert caught.value.file == str(tmp_path / "config.json")


def test_absent_config_is_named(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        read_model_config(tmp_path)
    assert caught.value.file == str(tmp_path / "config.json")
