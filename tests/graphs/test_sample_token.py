"""The token draw against the independent definition, in integers and double precision."""

from __future__ import annotations

import pytest
import torch

from nextn.graphs.ops.sample_token import gumbel_noise, sample_token
from nextn.runtime.contract.blocks import TEMPERATURE_ONE
from tests.oracles import token_sample

VOCAB = 263
SEEDS = (0, 1, 12345, 2**31 - 2, 2**31 - 1, 2**31, 2**32 + 5, 2**53 + 1, 2**62 + 12345, 2**63 - 1)
POSITIONS = (0, 1, 127, 70000, 2**31 - 1)


def test_noise_equals_the_definition():
    """Every seed, also beyond 2^31, at every position; within the rounding of fp32 logarithms."""
    position = torch.tensor(POSITIONS).expand(len(SEEDS), -1)
    found = gumbel_noise(torch.tensor(SEEDS), position, VOCAB)  # [B, V, vocab]
    assert torch.isfinite(found).all()
    for b, seed in enumerate(SEEDS):
        for v, place in enumerate(POSITIONS):
            expected = token_sample.gumbel_row(seed, place, VOCAB)
            torch.testing.assert_close(found[b, v].double(), expected, rtol=2e-6, atol=2e-6)
    distinct = {tuple(found[b, v, :4].tolist()) for b in range(len(SEEDS)) for v in range(len(POSITIONS))}
    # Seeds that agree modulo the prime differ through their high part; positions wrap at the prime only.
    assert len(distinct) == len(SEEDS) * (len(POSITIONS) - 1)


@pytest.mark.parametrize("temperature", [0.0, 2.0**-20, 0.8, 1.0, 5.0])
def test_drawn_tokens_equal_the_definition(temperature):
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(len(SEEDS), 3, VOCAB, generator=generator)
    position = torch.tensor([[5, 6, 7]]).expand(len(SEEDS), -1)
    fixed = round(temperature * TEMPERATURE_ONE)
    found = sample_token(logits, torch.tensor(SEEDS), position, torch.full((len(SEEDS),), fixed))
    for b, seed in enumerate(SEEDS):
        for v in range(3):
            token, margin = token_sample.draw_with_margin(
                logits[b, v], fixed / TEMPERATURE_ONE, seed, int(position[b, v])
            )
            assert margin > 1e-4  # no near tie in this set
            assert found[b, v] == token


def test_greedy_ties_go_to_the_lowest_token():
    logits = torch.zeros(1, 3, VOCAB)
    logits[0, 1, [200, 17, 90]] = 4.0
    logits[0, 2, [VOCAB - 1, VOCAB - 2]] = 1.0
    found = sample_token(logits, torch.tensor([9]), torch.tensor([[0, 1, 2]]), torch.tensor([0]))
    assert found.tolist() == [[0, 17, VOCAB - 2]]


def test_noise_depends_on_nothing_but_seed_position_and_token():
    """A row alone equals the row in a batch, and a narrow vocabulary is a prefix of a wide one."""
    seed, position = torch.tensor([3, 4]), torch.tensor([[10, 11], [11, 12]])
    whole = gumbel_noise(seed, position, VOCAB)
    assert torch.equal(gumbel_noise(seed[1:], position[1:, :1], 50)[0, 0], whole[1, 0, :50])
