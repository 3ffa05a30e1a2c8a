"""Rejected drafts leave no trace: after any acceptance pattern the state is that of plain decoding.

Drafts are written into the control block between rounds, so that every acceptance count is met at every
boundary whatever NextN would have proposed.
"""

from __future__ import annotations

import random

import pytest
import torch

from nextn.graphs.eager_session import EagerSession
from nextn.runtime.contract.blocks import Result
from tests.oracles.synthetic import CASES
from tests.rounds.host import prefill_chunks
from tests.rounds.readable_state import position_of, readable_state
from tests.rounds.script import BOUNDARIES, Script, force_drafts

OTHERS = tuple(name for name in CASES if name != "tiny")


def steps_of_cases(default: tuple[int, ...], full: tuple[int, ...], others: int) -> pytest.MarkDecorator:
    """Several k on the default case, some of them in the full run only, and one k on the other cases."""
    values = [pytest.param("tiny", steps) for steps in default]
    values += [pytest.param("tiny", steps, marks=pytest.mark.full) for steps in full]
    values += [pytest.param(name, others, marks=pytest.mark.full) for name in OTHERS]
    return pytest.mark.parametrize(("name", "num_steps"), values)


def forced_round(session: EagerSession, script: Script, wanted: dict[int, int]) -> None:
    """One round in which slot s accepts exactly `wanted[s]` drafts; acceptance, tokens and state compared."""
    num_steps = session.shape.num_steps
    before = {slot: position_of(session.state, slot) for slot in wanted}
    for slot, accepted in wanted.items():
        force_drafts(session.state, slot, script.drafts(before[slot], accepted, num_steps))
    session.round()
    for slot, accepted in wanted.items():
        start = before[slot]
        assert session.result(slot, Result.ACCEPTED) == [accepted]
        assert session.result(slot, Result.OUT_COUNT) == [accepted + 1]
        out = session.result(slot, Result.OUT)[: accepted + 1]
        assert out == script.tokens[start + 1 : start + accepted + 2]
        assert position_of(session.state, slot) == start + accepted + 1
        snapshot = readable_state(session.state, session.shape, slot)
        script.assert_plain(snapshot)
        script.assert_drafting(snapshot, num_steps)


def session_of(script: Script, num_steps: int, batch: int) -> EagerSession:
    shape = script.product.shape(num_steps, (batch,), script.max_seq_len, prefill_chunk=32)
    return script.product.session(shape)


@steps_of_cases(default=(3,), full=(1, 2, 5), others=3)
def test_every_acceptance_at_every_boundary(script_of, name, num_steps):
    """All of a = 0..k at once, one per slot, so the rows of one batch advance unequally.

    Compressor rows of rejected drafts: https://github.com/ggml-org/llama.cpp/issues/25691.
    Unequal rows of one batch: https://github.com/Blaizzy/mlx-vlm/issues/1155.
    """
    script = script_of(name)
    session = session_of(script, num_steps, num_steps + 1)
    for length in BOUNDARIES:
        session.live.clear()
        for slot in range(num_steps + 1):
            session.prefill(slot, script.request(length))
        forced_round(session, script, {slot: slot for slot in range(num_steps + 1)})
        forced_round(session, script, {slot: num_steps - slot for slot in range(num_steps + 1)})


@steps_of_cases(default=(), full=(3, 8), others=8)
def test_random_acceptance_over_a_long_run(script_of, name, num_steps):
    """Many rounds in a row, from position 1 to past the second C128 block; k = 8 fills the widest window.

    Crossing the sliding window: https://github.com/ml-explore/mlx-swift-lm/issues/505 and
    https://github.com/ikawrakow/ik_llama.cpp/issues/2309.
    """
    script = script_of(name)
    session = session_of(script, num_steps, 2)
    for slot, length in enumerate((1, 120)):
        session.prefill(slot, script.request(length))
    choose = random.Random(num_steps)
    while position_of(session.state, 1) < 270:
        forced_round(session, script, {slot: choose.randint(0, num_steps) for slot in (0, 1)})


@pytest.mark.parametrize("name", ["tiny", pytest.param("pro_like", marks=pytest.mark.full)])
def test_rounds_between_the_chunks_of_another_prompt(script_of, name):
    """A prefill launches between rounds of the other slots; neither side may notice the other."""
    script = script_of(name)
    shape = script.product.shape(3, (1, 4), script.max_seq_len, prefill_chunk=7)
    session = script.product.session(shape)
    choose = random.Random(0)
    for slot, length in ((2, 30), (0, 126), (3, 61)):
        for _ in prefill_chunks(session, slot, script.request(length)):
            others = {other: choose.randint(0, 3) for other in session.live if other != slot}
            request = session.live.pop(slot, None)
            if others:
                forced_round(session, script, others)
            if request is not None:
                session.live[slot] = request
        snapshot = readable_state(session.state, shape, slot)
        script.assert_plain(snapshot)
        script.assert_drafting(snapshot, 3)
    forced_round(session, script, {0: 0, 2: 3, 3: 1})


def test_a_round_without_its_rejected_rows_would_differ(script_of):
    """The rows of a rejected draft do reach the buffers: the comparisons above are not vacuous."""
    script = script_of("tiny")
    session = session_of(script, 3, 1)
    session.prefill(0, script.request(10))
    force_drafts(session.state, 0, script.drafts(10, 0, 3))
    session.round()
    assert position_of(session.state, 0) == 11
    ring = session.state.get_buffer("window_1")
    expected = script.plain[14]["window_1"]  # [W - 1, D] of positions 7 .. 13
    stale, committed = (ring[position % session.shape.ring_rows] for position in (12, 10))
    assert (stale - expected[12 - 7]).abs().max() > 0.1
    torch.testing.assert_close(committed, expected[10 - 7], rtol=0, atol=1e-4)
