"""Tables of rotary frequencies in a checkpoint: a config gives the same, so they are recomputed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4RotaryEmbedding

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights import Checkpoint
from tests.weights.folders import tiny_config, tiny_tensors, write_folder

ROTARY = DeepseekV4RotaryEmbedding(DeepseekV4Config(**tiny_config()))
PLAIN: Tensor = ROTARY.main_inv_freq
COMPRESSED: Tensor = ROTARY.compress_inv_freq


def turning(frequencies: Tensor, length: int = 50) -> Tensor:
    """complex64 `[length, width / 2]`, as the release's reference code keeps them."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def test_the_oracle_has_two_tables() -> None:
    width = tiny_config()["qk_rope_head_dim"]
    assert PLAIN.shape == COMPRESSED.shape == (width // 2,)
    assert math.isclose(float(PLAIN[1]), 10000 ** (-2 / width), rel_tol=1e-6)
    assert not torch.allclose(PLAIN, COMPRESSED)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("layers.0.attn.rotary_emb.inv_freq", PLAIN),
        ("model.layers.2.self_attn.rotary_emb.inv_freq", COMPRESSED),
        ("model.rotary_emb.main_inv_freq", PLAIN),
        ("rotary_emb.compress_original_inv_freq", COMPRESSED),
        ("layers.1.attn.rotary_emb.inv_freq", COMPRESSED.bfloat16()),
        ("freqs_cis", turning(PLAIN)),
        ("layers.1.attn.freqs_cis", turning(COMPRESSED)),
        ("mtp.0.attn.freqs_cis", turning(PLAIN)),
        ("rotary_emb.cos_cached", turning(PLAIN).real.contiguous()),
        ("rotary_emb.sin_cached", torch.cat([turning(COMPRESSED).imag] * 2, dim=1)),
    ],
)
def test_tables_of_the_config_are_ignored(tmp_path: Path, name: str, table: Tensor) -> None:
    """https://github.com/huggingface/transformers/issues/35255"""
    checkpoint = Checkpoint.open(write_folder(tmp_path, tiny_config(), tiny_tensors() | {name: table}))
    assert checkpoint.has_nextn
    assert checkpoint.warnings == ()


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("layers.0.attn.rotary_emb.inv_freq", PLAIN * 1.01),
        ("layers.0.attn.rotary_emb.inv_freq", PLAIN[:-1].contiguous()),
        ("layers.0.attn.rotary_emb.inv_freq", torch.arange(len(PLAIN))),
        ("freqs_cis", turning(PLAIN / 4)),
        ("freqs_cis", turning(PLAIN).conj().resolve_conj()),
        ("rotary_emb.cos_cached", turning(PLAIN).imag.contiguous()),
    ],
)
def test_other_tables_are_ignored_with_a_warning(tmp_path: Path, name: str, table: Tensor) -> None:
    checkpoint = Checkpoint.open(write_folder(tmp_path, tiny_config(), tiny_tensors() | {name: table}))
    [warning] = checkpoint.warnings
    assert name in warning and "model.safetensors" in warning and "rotary" in warning


@pytest.mark.parametrize("name", ["layers.0.attn.rotary_emb.weight", "layers.0.attn.inv_freq_scale", "freqs"])
def test_other_names_are_still_unexpected(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="unexpected tensor"):
        Checkpoint.open(write_folder(tmp_path, tiny_config(), tiny_tensors() | {name: PLAIN}))
