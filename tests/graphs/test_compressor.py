"""Compressors against a loop over blocks, positions and channels' halves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nextn.graphs.compressor import Compressor
from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.rope import Rope, inverse_frequencies
from nextn.graphs.session_shape import overlap
from nextn.graphs.window import Window
from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS
from nextn.weights.config_json import parse_model_config
from tests.oracles.synthetic import CASES

WIDTH = 32
LENGTH = 150
TOLERANCE = 5e-6


def config() -> ModelConfig:
    return parse_model_config(CASES["tiny"].config, "config.json")[0]


def random_compressor(ratio: int) -> Compressor:
    generator = torch.Generator().manual_seed(ratio)
    compressor = Compressor(config(), ratio, WIDTH)
    for name, buffer in compressor.named_buffers():
        scale = 1.0 if name == "ape" else 1.5 / buffer.shape[-1] ** 0.5
        buffer.copy_(scale * torch.randn(buffer.shape, generator=generator))
    return compressor


def naive_entries(compressor: Compressor, x: Tensor) -> Tensor:
    """Entries `[LENGTH // ratio, D]` float64 of inputs `x [LENGTH, H]`, from the published definition."""
    ratio, channels = compressor.ratio, overlap(compressor.ratio) * WIDTH
    matrix = compressor.wkv_gate.weight.double()
    values = x.double() @ matrix[:channels].T  # [LENGTH, cD]
    gates = x.double() @ matrix[channels:].T + compressor.ape.double()[torch.arange(LENGTH) % ratio]
    frequencies = inverse_frequencies(config(), compressed=True).double()
    entries = []
    for block in range(LENGTH // ratio):
        pooled = []
        for channel in range(WIDTH):
            # (value, gate) of every position that this entry pools in this channel.
            slots = [
                (values[p, channels - WIDTH + channel], gates[p, channels - WIDTH + channel])
                for p in range(block * ratio, (block + 1) * ratio)
            ]
            if ratio == 4 and block > 0:  # the first half of the previous block's channels
                slots += [
                    (values[p, channel], gates[p, channel]) for p in range((block - 1) * ratio, block * ratio)
                ]
            weights = torch.softmax(torch.stack([gate for _, gate in slots]), 0)
            pooled.append(sum(w * value for w, (value, _) in zip(weights, slots, strict=True)))
        row = torch.stack(pooled)
        row = row / torch.sqrt((row * row).mean() + config().rms_norm_eps) * compressor.norm.weight.double()
        # Rotated at the block's first position, in the last 2 * len(frequencies) channels.
        still = WIDTH - 2 * len(frequencies)
        pairs = torch.view_as_complex(row[still:].view(-1, 2).contiguous())
        turn = torch.polar(torch.ones_like(frequencies), frequencies * (block * ratio))
        entries.append(torch.cat([row[:still], torch.view_as_real(pairs * turn).flatten()]))
    return torch.stack(entries)


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("width", [1, 3, 4, 9, 16, LENGTH])
def test_entries_equal_the_loop_in_windows_of_any_width(ratio, width):
    """Slot 1 of three; the ring has its tight size and starts out full of NaN, as do the entries."""
    compressor = random_compressor(ratio)
    x = torch.randn(LENGTH, config().hidden_size, generator=torch.Generator().manual_seed(0))
    rope = Rope(config().qk_rope_head_dim)
    rope.inverse_frequencies = inverse_frequencies(config(), compressed=True)
    ring_rows, capacity = overlap(ratio) * ratio + MAX_WINDOW_ROWS - 1, -(-LENGTH // ratio)
    ring = torch.full((3 * ring_rows, 2 * overlap(ratio) * WIDTH), torch.nan)
    entries = torch.full((3 * capacity, WIDTH), torch.nan)
    for start in range(0, LENGTH, width):
        piece = x[start : start + width]
        padded = torch.cat([piece, torch.zeros(width - len(piece), x.shape[1])])
        window = Window(torch.tensor([1]), torch.tensor([start]), torch.tensor([len(piece)]), width, 2)
        compressor(padded, window, rope, ring, window.entries(entries, ratio))
    complete = LENGTH // ratio
    found = entries[capacity : capacity + complete]
    torch.testing.assert_close(found.double(), naive_entries(compressor, x), rtol=0, atol=TOLERANCE)
    assert entries[:capacity].isnan().all() and ring[:ring_rows].isnan().all()  # slot 0 is untouched
    assert entries[capacity + complete : 2 * capacity].isnan().all()  # so is the incomplete block's entry
