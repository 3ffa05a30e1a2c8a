"""Rotary tables and rotation against formulas in double precision."""

from __future__ import annotations

import math

import pytest
import torch

from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.rope import Rope, apply_rope, inverse_frequencies
from nextn.weights.config_json import parse_model_config
from tests.graphs.releases import flash_config
from tests.oracles.synthetic import CASES

POSITIONS = (0, 127, 4096, 70000)


def configs() -> dict[str, ModelConfig]:
    return {
        "flash": parse_model_config(flash_config(), "config.json")[0],
        "tiny": parse_model_config(CASES["tiny"].config, "config.json")[0],
        "release_window": parse_model_config(CASES["release_window"].config, "config.json")[0],
    }


def frequency(config: ModelConfig, pair: int, compressed: bool) -> float:
    """Radians per position of one pair, from the published formula."""
    width = config.qk_rope_head_dim
    base = config.compress_rope_theta if compressed else config.rope_theta
    plain = base ** (-2 * pair / width)
    if not compressed:
        return plain
    yarn = config.rope_scaling
    # The pair that makes so many rotations over the original context.
    low, high = (
        width * math.log(yarn.original_max_position / (rotations * 2 * math.pi)) / (2 * math.log(base))
        for rotations in (yarn.beta_fast, yarn.beta_slow)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    keep = 1 - min(max((pair - low) / (high - low), 0), 1)
    return plain / yarn.factor * (1 - keep) + plain * keep


@pytest.mark.parametrize("name", ["flash", "tiny", "release_window"])
@pytest.mark.parametrize("compressed", [False, True])
def test_golden_rows(name, compressed):
    """Both tables at positions inside and far beyond the original context; no amplitude factor.

    YaRN on plain layers, or the wrong base: https://github.com/sgl-project/sglang/pull/34788,
    https://github.com/ml-explore/mlx-lm/issues/1189, https://github.com/NVIDIA-NeMo/Automodel/issues/2103.
    """
    config = configs()[name]
    rope = Rope(config.qk_rope_head_dim)
    rope.inverse_frequencies = inverse_frequencies(config, compressed)
    cos, sin = rope(torch.tensor(POSITIONS))
    for row, position in enumerate(POSITIONS):
        for pair in range(config.qk_rope_head_dim // 2):
            angle = position * frequency(config, pair, compressed)
            # fp32 angles, as in the reference tables: at 70000 half a unit in the last place is 0.004.
            tolerance = 1e-6 + abs(angle) * 3e-7
            assert abs(cos[row, pair].item() - math.cos(angle)) <= tolerance, (position, pair)
            assert abs(sin[row, pair].item() - math.sin(angle)) <= tolerance, (position, pair)


def test_correction_range_of_the_release():
    """Pairs up to 15 keep their frequency, from 25 on it is divided by 16."""
    config = configs()["flash"]
    scaled = inverse_frequencies(config, compressed=True).double()
    plain = torch.tensor(
        [config.compress_rope_theta ** (-2 * i / 64) for i in range(32)], dtype=torch.float64
    )
    ratio = plain / scaled
    torch.testing.assert_close(ratio[:16], torch.ones(16, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(ratio[25:], torch.full((7,), 16.0, dtype=torch.float64), rtol=1e-6, atol=0)
    assert (ratio[16:25] > 1).all() and (ratio[16:25] < 16).all()


def test_rotation_turns_adjacent_pairs_of_the_last_channels():
    """As a complex product; the leading channels stay, the inverse undoes it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 2, 10, generator=generator)  # [T, N, D], the last 6 channels turn
    angle = 6.0 * torch.rand(4, 1, 3, generator=generator)
    found = apply_rope(x, torch.cos(angle), torch.sin(angle))
    pairs = torch.view_as_complex(x[..., 4:].reshape(4, 2, 3, 2).contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    torch.testing.assert_close(found, torch.cat([x[..., :4], turned], -1), rtol=0, atol=1e-6)
    torch.testing.assert_close(apply_rope(found, torch.cos(angle), -torch.sin(angle)), x, rtol=0, atol=1e-6)
