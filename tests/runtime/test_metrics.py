"""Acceptance and latency figures against their definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.runtime.bindings.session import SessionResult
from nextn.runtime.engine.metrics import Acceptance, Percentiles, RequestMetrics


@given(st.integers(1, 8), st.data())
def test_mean_is_one_plus_k_times_rate(num_steps: int, data: st.DataObject) -> None:
    accept_lens = data.draw(st.lists(st.integers(1, num_steps + 1), min_size=1))
    figures = Acceptance.of_accept_lens(accept_lens, num_steps)
    assert figures.mean_acceptance_length is not None
    assert figures.draft_acceptance_rate is not None
    assert figures.acceptance_rate_per_position is not None
    assert math.isclose(figures.mean_acceptance_length, sum(accept_lens) / len(accept_lens))
    assert math.isclose(figures.mean_acceptance_length, 1 + num_steps * figures.draft_acceptance_rate)
    assert math.isclose(sum(figures.acceptance_rate_per_position), figures.mean_acceptance_length - 1)
    assert sorted(figures.acceptance_rate_per_position, reverse=True) == list(
        figures.acceptance_rate_per_position
    )


def test_figures_of_known_rounds() -> None:
    figures = Acceptance.of_accept_lens([1, 2, 4, 4], 3)
    assert figures == Acceptance(2.75, 7 / 12, (0.75, 0.5, 0.5))


def test_no_rounds_give_null() -> None:
    assert Acceptance.of_accept_lens([], 3) == Acceptance(None, None, None)


def test_plain_decoding_proposes_nothing() -> None:
    assert Acceptance.of_accept_lens([1, 1], 0) == Acceptance(1.0, None, ())


@pytest.mark.parametrize(
    ("tokens", "ttft", "tpot", "e2e"),
    [((), None, None, None), ((5,), 10.0, None, 18.0), ((5, 6, 7), 10.0, 4.0, 18.0)],
)
def test_request_times(
    tokens: tuple[int, ...], ttft: float | None, tpot: float | None, e2e: float | None
) -> None:
    result = SessionResult(tokens, (1,) * len(tokens), "length", 3, ttft_ms=10.0, e2e_ms=18.0)
    metrics = RequestMetrics.of(result, num_steps=3)
    assert (metrics.ttft_ms, metrics.tpot_ms, metrics.e2e_ms) == (ttft, tpot, e2e)


def test_percentiles() -> None:
    assert Percentiles.of([None]) is None
    assert Percentiles.of([4.0, None]) == Percentiles(4.0, 4.0)
    spread = Percentiles.of(range(101))
    assert spread is not None
    assert math.isclose(spread.p50, 50)
    assert math.isclose(spread.p99, 99)
