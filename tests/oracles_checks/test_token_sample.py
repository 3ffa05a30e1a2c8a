"""The noise behind sampled tokens: exact, uniform, independent, and giving the softmax law.

Statistical checks use fixed inputs, so they cannot fail by chance on a later run. Chi-square values are
given as the number of standard deviations above their mean; a sound source stays within about 4.
"""

import math

import pytest
import torch
from torch import Tensor

from tests.oracles import token_sample
from tests.oracles.token_sample import PRIME

SAMPLES = 200_000
LIMIT = 4.0
KNOWN_HASHES = [1052253332, 1274121494, 203742293, 1978472131, 1850846682]


def _rows(seeds: range, positions: range, tokens: int) -> Tensor:
    """[seeds, positions, tokens] of hash values, in [0, 1)."""
    values = [token_sample.hashed_row(seed, position, tokens) for seed in seeds for position in positions]
    return torch.stack(values).view(len(seeds), len(positions), tokens).double() / PRIME


def _excess(observed: Tensor, expected: Tensor) -> float:
    """Chi-square of counts, in standard deviations from its mean."""
    freedom = observed.numel() - 1
    chi_square = ((observed - expected) ** 2 / expected).sum().item()
    return (chi_square - freedom) / math.sqrt(2 * freedom)


def _pair_excess(first: Tensor, second: Tensor, cells: int = 16) -> float:
    """Whether two equally long sets of uniform numbers fill the unit square evenly."""
    cell = (first * cells).long() * cells + (second * cells).long()
    counts = torch.bincount(cell.flatten(), minlength=cells**2).double()
    return _excess(counts, torch.full_like(counts, first.numel() / cells**2))


def _correlation(first: Tensor, second: Tensor) -> float:
    """Correlation of the Gumbel noise, in standard deviations from zero."""
    noise = torch.stack([-torch.log(-torch.log1p(-one.flatten() - 1e-10)) for one in (first, second)])
    return torch.corrcoef(noise)[0, 1].item() * math.sqrt(first.numel())


@pytest.mark.parametrize("seed", [0, 1, -1, PRIME, 2**62, -(2**63)])
@pytest.mark.parametrize("position", [0, 7, 4095, 2**31 + 5])
def test_vector_form_equals_plain_integers(seed, position):
    hashes = token_sample.hashed_row(seed, position, 130_000)
    noise = token_sample.gumbel_row(seed, position, 130_000)
    for token in (0, 1, 2, 255, 129_279):
        assert hashes[token].item() == token_sample.hashed(seed, position, token)
        assert noise[token].item() == pytest.approx(token_sample.gumbel(seed, position, token), rel=1e-12)
    assert torch.isfinite(noise).all()


def test_known_values():
    """Pinned, so that no two implementations drift together."""
    found = [token_sample.hashed(*key) for key in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (-5, 9, 100))]
    assert found == KNOWN_HASHES


def test_extremes_are_finite(monkeypatch):
    for value in (0, 1, PRIME - 1):
        monkeypatch.setattr(token_sample, "hashed", lambda *_, value=value: value)
        assert math.isfinite(token_sample.gumbel(0, 0, 0))


def test_a_row_never_repeats_a_value():
    assert token_sample.hashed_row(3, 14, 129_280).unique().numel() == 129_280


def test_uniform_over_tokens_positions_and_seeds():
    samples = {
        "tokens": _rows(range(1), range(1), SAMPLES),
        "positions": _rows(range(1), range(SAMPLES // 20), 20),
        "seeds": _rows(range(SAMPLES // 20), range(1), 20),
    }
    for name, values in samples.items():
        counts = torch.bincount((values * 256).long().flatten(), minlength=256).double()
        assert abs(_excess(counts, torch.full_like(counts, values.numel() / 256))) < LIMIT, name


def test_neighbours_are_independent():
    values = _rows(range(41), range(41), 126)
    base = values[:-1, :-1, :-1]
    neighbours = {
        "token": values[:-1, :-1, 1:],
        "position": values[:-1, 1:, :-1],
        "seed": values[1:, :-1, :-1],
        "position and token": values[:-1, 1:, 1:],
        "seed and position": values[1:, 1:, :-1],
    }
    assert base.numel() == SAMPLES
    for name, shifted in neighbours.items():
        assert abs(_pair_excess(base, shifted)) < LIMIT, name
        assert abs(_correlation(base, shifted)) < LIMIT, name


def test_first_two_tokens_follow_softmax():
    """The law of what matters: two consecutive draws, over seeds as users number them."""
    seeds, vocab, temperature = 20_000, 8, 0.8
    logits = 1.2 * torch.randn(2, vocab, generator=torch.Generator().manual_seed(2)).double()  # [2, V]
    noise = torch.stack(
        [
            torch.stack([token_sample.gumbel_row(seed, position, vocab) for position in (12, 13)])
            for seed in range(seeds)
        ]
    )  # [seeds, 2, V]
    drawn = (logits + temperature * noise).argmax(-1)  # [seeds, 2]
    law = torch.softmax(logits / temperature, dim=-1)  # [2, V]
    expected = seeds * torch.outer(law[0], law[1]).flatten()
    counts = torch.bincount(drawn[:, 0] * vocab + drawn[:, 1], minlength=vocab**2).double()
    assert abs(_excess(counts, expected)) < LIMIT


def test_greedy_takes_the_lowest_of_equals():
    logits = torch.tensor([1.0, 5.0, 5.0, -2.0, 5.0])
    assert token_sample.draw_with_margin(logits, 0.0, seed=9, position=3) == (1, 0.0)


def test_low_temperature_approaches_greedy():
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
    drawn = {token_sample.sample_token(logits, 1e-4, seed, position=5) for seed in range(50)}
    assert drawn == {int(logits.argmax())}
