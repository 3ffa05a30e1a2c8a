"""Tables of rotary frequencies that some exports store: recomputed from the config, so never used.

Names end in `inv_freq`, `freqs_cis`, `cos_cached` or `sin_cached` (docs/mathematics.md, "RoPE and YaRN").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.rope import inverse_frequencies
from nextn.weights.shards import ShardTensor

_TABLE = re.compile(
    r"(?:.+\.)?(?:rotary_emb\.(?:(?:main|compress)_)?(?:original_)?(?P<inverse>inv_freq)"
    r"|(?:rotary_emb\.)?(?P<table>freqs_cis|cos_cached|sin_cached))"
)

_COMPARED_ROWS = 1024
"""Positions of a table that are compared: equal there, its frequencies are equal."""

_TOLERANCE = 1e-3
"""Of cosines and sines at these positions, whose angles are float32; frequencies agree to 1e-5."""


def is_rope_table(name: str) -> bool:
    """Whether a tensor of this name on disk is a table of rotary frequencies."""
    return _TABLE.fullmatch(name) is not None


def rope_table_warnings(tensors: Mapping[str, ShardTensor], config: ModelConfig) -> list[str]:
    """A line for each table whose values `config` does not give; reads the first rows of each."""
    expected = [inverse_frequencies(config, compressed) for compressed in (False, True)]
    return [
        f"{tensor.file}: {name} holds other rotary frequencies than config.json gives; it is not used"
        for name, tensor in tensors.items()
        if is_rope_table(name) and not _equals_any(name, tensor.file, expected)
    ]


def _equals_any(name: str, file: Path, expected: list[Tensor]) -> bool:
    with safe_open(file, framework="pt") as opened:
        stored = opened.get_slice(name)
        if len(stored.get_shape()) not in (1, 2):
            return False
        values: Tensor = stored[:_COMPARED_ROWS]
    found = _TABLE.fullmatch(name)
    assert found is not None
    return any(_equals(found["table"], values, frequencies) for frequencies in expected)


def _equals(table: str | None, values: Tensor, frequencies: Tensor) -> bool:
    if table is None:
        if not values.is_floating_point() or values.shape != frequencies.shape:
            return False
        tolerance = 1e-5 if values.dtype == torch.float32 else torch.finfo(values.dtype).eps
        return torch.allclose(values.float(), frequencies, rtol=tolerance, atol=0)
    angles = torch.outer(torch.arange(len(values), dtype=torch.float32), frequencies)  # [L, width / 2]
    if table == "freqs_cis":
        wanted = torch.polar(torch.ones_like(angles), angles)
        if not values.is_complex():
            return False
    else:
        wanted = torch.cos(angles) if table == "cos_cached" else torch.sin(angles)
        if not values.is_floating_point():
            return False
        values = values.float()
        if values.shape[-1] == 2 * wanted.shape[-1]:  # each half of the channels has the same angles
            wanted = torch.cat([wanted, wanted], dim=1)
    return values.shape == wanted.shape and torch.allclose(values, wanted, rtol=0, atol=_TOLERANCE)
