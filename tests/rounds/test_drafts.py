"""Drafts and acceptance, round by round, against the simulation that recomputes everything from token 0.

Tokens cannot show a wrong draft: they would still be the plain ones, only slower. So the drafts themselves
and the acceptance of every round are compared.
"""

from __future__ import annotations

from collections import Counter

import pytest

from nextn.graphs.eager_session import EagerRequest
from nextn.runtime.contract.blocks import Control
from tests.oracles import cache_free_rounds
from tests.rounds.product import Product
from tests.rounds.readable_state import control_of

TIE = 1e-4
"""Below this margin rounding may rightly choose the other token; such a request is skipped, and counted."""

LENGTHS = (1, 3, 7, 20, 126, 131)
"""Prompts below and above the window, and past the first C128 block."""

NEW_TOKENS = 40


def drafts_of_rounds(product: Product, request: EagerRequest, num_steps: int) -> list[tuple[int, ...]]:
    """Run `request` alone; the drafts that each round verified."""
    shape = product.shape(num_steps)
    session = product.session(shape)
    session.prefill(0, request)
    drafts = []
    while session.live:
        drafts.append(tuple(control_of(session.state, 0)[Control.DRAFT.columns][:num_steps]))
        session.round()
    return drafts


def compare_request(
    product: Product, request: EagerRequest, num_steps: int
) -> cache_free_rounds.Generation | None:
    """The simulated generation, equal to the product's; None if a near tie makes them incomparable."""
    oracle = product.oracle
    expected = cache_free_rounds.speculative(
        oracle.target,
        oracle.nextn,
        cache_free_rounds.Request(
            tuple(request.prompt),
            request.max_new_tokens,
            temperature=request.temperature,
            seed=request.seed,
        ),
        num_steps,
    )
    if expected.smallest_margin < TIE:
        return None
    drafts = drafts_of_rounds(product, request, num_steps)
    assert request.tokens == expected.token_ids
    assert request.accept_lens == expected.accept_lens
    for found, one in zip(drafts, expected.rounds, strict=True):
        # A draft after the first rejected one hangs on no margin that was checked, so check its own.
        clear = next((j for j, margin in enumerate(one.draft_margins) if margin < TIE), num_steps)
        assert found[:clear] == one.drafts[:clear]
    return expected


@pytest.mark.parametrize(
    "num_steps", [3, *(pytest.param(steps, marks=pytest.mark.full) for steps in (1, 2, 5))]
)
def test_drafts_and_acceptance_of_every_round(product_of, num_steps):
    """At least five rounds at every acceptance 0..k, or the comparison would prove little.

    Wrong streams or tokens fed to NextN: https://github.com/vllm-project/vllm/issues/14647,
    https://github.com/deepseek-ai/DeepSeek-V3/issues/839. No catch-up over the prompt:
    https://github.com/Avarok-Cybersecurity/atlas/issues/364. Token 0 at draft depth 2 and more:
    https://github.com/antirez/ds4/issues/750. Sampled drafts never accepted:
    https://github.com/vllm-project/vllm/issues/41044.
    """
    product = product_of("tiny")
    histogram: Counter[int] = Counter()
    skipped = 0
    for index, length in enumerate(LENGTHS):
        for temperature in (0.0, 0.8):
            prompt = product.oracle.prompt(length, seed=index)
            request = EagerRequest(prompt, NEW_TOKENS, seed=index, temperature=temperature)
            expected = compare_request(product, request, num_steps)
            if expected is None:
                skipped += 1
            else:
                histogram.update(one.accepted for one in expected.rounds)
    assert skipped <= 1
    assert all(histogram[accepted] >= 5 for accepted in range(num_steps + 1)), histogram


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["window_only", "three_streams", "release_window", "pro_like", "narrow_index"]
)
@pytest.mark.parametrize("num_steps", [2, 3])
def test_drafts_and_acceptance_of_other_shapes(product_of, name, num_steps):
    """`pro_like` starts with ratios 128: a NextN that borrows a Target layer's settings shows there.

    https://github.com/antirez/ds4/issues/411
    """
    product = product_of(name)
    compared = 0
    for index, length in enumerate((2, 15, 127)):
        prompt = product.oracle.prompt(length, seed=index)
        request = EagerRequest(prompt, 24, seed=index, temperature=0.8 * (index % 2))
        compared += compare_request(product, request, num_steps) is not None
    assert compared >= 2
