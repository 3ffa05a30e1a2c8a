"""The shared-noise draw as ONNX: its integers bit for bit, its tokens by the independent definition."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from nextn.compile.targets.onnx.target import DEFAULT_OPSET, NEWEST_OPSET
from nextn.graphs.ops.operator import OPERATORS
from nextn.graphs.ops.sample_token import noise_integers, sample_token
from nextn.runtime.contract.blocks import TEMPERATURE_ONE
from tests.compile.onnx import run
from tests.oracles import token_sample

VOCAB = 131
SEEDS = (0, 1, 2**31 - 2, 2**31 - 1, 2**31, 2**32 + 5, 2**53 + 1, 2**62 + 12345, 2**63 - 1)
POSITIONS = (0, 127, 70000, 2**31 - 1)

computed = partial(run.computed, decomposed=True)


@pytest.mark.parametrize("opset", [DEFAULT_OPSET, NEWEST_OPSET])
def test_integers_bit_for_bit(opset: int) -> None:
    """Floor division in floating point, as an exporter may choose, loses the low bits of a seed."""
    seed, position = torch.tensor(SEEDS), torch.tensor(POSITIONS).repeat(len(SEEDS), 1)
    found = computed(lambda s, p: noise_integers(s, p, VOCAB), seed, position, opset=opset)
    found = found.view(len(SEEDS), len(POSITIONS), VOCAB)
    for b, one in enumerate(SEEDS):
        for v, place in enumerate(POSITIONS):
            assert torch.equal(found[b, v], token_sample.hashed_row(one, place, VOCAB)), (one, place)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 5.0])
def test_drawn_tokens(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(len(SEEDS), 3, VOCAB, generator=generator)
    fixed = torch.full((len(SEEDS),), round(temperature * TEMPERATURE_ONE))
    position = torch.tensor([[5, 6, 7]]).repeat(len(SEEDS), 1)
    found = computed(OPERATORS[sample_token], logits, torch.tensor(SEEDS), position, fixed)
    for b, seed in enumerate(SEEDS):
        for v in range(3):
            exact = int(fixed[0]) / TEMPERATURE_ONE
            token, margin = token_sample.draw_with_margin(logits[b, v], exact, seed, int(position[b, v]))
            assert margin > 1e-4, "no near tie in this set"
            assert found[b, v] == token


def test_ties_go_to_the_lowest_token() -> None:
    logits = torch.zeros(1, 2, VOCAB)
    logits[0, 1, [100, 17, 90]] = 4.0
    drawn = computed(
        OPERATORS[sample_token],
        logits,
        torch.tensor([9]),
        torch.tensor([[0, 1]]),
        torch.zeros(1, dtype=torch.int64),
    )
    assert drawn.tolist() == [[0, 17]]
