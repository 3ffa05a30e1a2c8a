"""What a request may not read can hold anything: NaN and huge values there change no live output."""

from __future__ import annotations

import math

import pytest
import torch

from nextn.graphs.eager_session import EagerRequest, EagerSession
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State, state_table
from tests.oracles.synthetic import CASES
from tests.rounds.product import Product
from tests.rounds.readable_state import (
    poison_unreadable,
    position_of,
    readable_positions,
    readable_state,
)

POISONS = (math.nan, 1e30, -1e30)

case_names = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "tiny" else pytest.mark.full) for name in CASES]
)
poisons = pytest.mark.parametrize("value", POISONS)


def is_poison(rows: torch.Tensor, value: float) -> torch.Tensor:
    return rows.isnan() if math.isnan(value) else rows == torch.tensor(value)


def poisoned_rows(state: State, shape: SessionShape, slot: int, value: float) -> int:
    """How many rows of `slot` hold nothing but poison."""
    count = 0
    for spec in state_table(shape):
        rows = state.get_buffer(spec.name).view(shape.slots + 1, spec.rows_per_slot, -1)[slot]
        if rows.is_floating_point():
            count += int(is_poison(rows, value).all(-1).sum())
    return count


def poison_everything(session: EagerSession, value: float) -> None:
    """All floating-point state, the scratch slot's rows included."""
    assert poison_unreadable(session.state, session.shape, [], value)


def three_requests(product: Product) -> list[EagerRequest]:
    return [
        EagerRequest(
            product.oracle.prompt(length, seed=length), 14 + length % 5, seed=length, temperature=temperature
        )
        for length, temperature in ((2, 0.0), (9, 0.8), (125, 0.0))
    ]


@case_names
@poisons
def test_never_written_state_is_never_read(product_of, name, value):
    """Three requests in a bucket of four, everything poisoned before the first launch; slot 0 is live.

    Rows of the idle slot keep their poison to the end, so nothing is written outside the live slots.
    Padded rows that touched live ones: https://github.com/vllm-project/vllm/issues/56734,
    https://github.com/lightseekorg/tokenspeed/issues/700, https://github.com/sgl-project/sglang/issues/18647.
    """
    product = product_of(name)
    shape = product.shape(3, (4,))
    expected = [product.generate([request], product.shape(3))[0] for request in three_requests(product)]
    session = product.session(shape)
    poison_everything(session, value)
    idle = poisoned_rows(session.state, shape, 3, value)
    assert idle > 0 and idle == poisoned_rows(session.state, shape, shape.slots, value)
    found = session.generate(three_requests(product))
    for one, reference in zip(found, expected, strict=True):
        assert (one.tokens, one.accept_lens) == (reference.tokens, reference.accept_lens)
    assert poisoned_rows(session.state, shape, 3, value) == idle


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, marks=() if name == "tiny" and math.isnan(value) else pytest.mark.full)
        for name in CASES
        for value in (POISONS if name == "tiny" else POISONS[:1])
    ],
)
def test_only_readable_rows_are_read(script_of, name, value):
    """Before every round all rows but the readable ones turn into poison, pad rows' included.

    This also proves that `readable_positions`, which other tests compare, leaves nothing out.
    """
    script = script_of(name)
    shape = script.product.shape(3, (4,), script.max_seq_len, prefill_chunk=32)
    session = script.product.session(shape)
    for slot, length in enumerate((1, 60, 124)):
        session.prefill(slot, script.request(length))
    for _ in range(6):
        hit = poison_unreadable(session.state, shape, [0, 1, 2], value)
        assert {"window_0", "target_streams", "nextn_stream", "nextn_window"} <= set(hit)
        session.round()
        for slot in range(3):
            snapshot = readable_state(session.state, shape, slot)
            script.assert_plain(snapshot)
            script.assert_drafting(snapshot, 3)
        assert poisoned_rows(session.state, shape, 3, value) > 0


def restore(state: State, shape: SessionShape, slot: int, snapshot: dict[str, torch.Tensor]) -> None:
    """Put the unseeded snapshot's rows back at their positions."""
    rows_per_slot = {spec.name: spec.rows_per_slot for spec in state_table(shape)}
    positions = readable_positions(shape, position_of(state, slot), unseeded=True)
    for name, covered in positions.items():
        for row, position in zip(snapshot[name], covered, strict=True):
            rows = rows_per_slot[name]
            state.get_buffer(name)[slot * rows + position % rows] = row


@poisons
def test_seed_reads_only_the_prompts_tail(script_of, value):
    """Between the last chunk and the seed, everything else may be poison as well."""
    script = script_of("tiny")
    shape = script.product.shape(3, (2,), script.max_seq_len, prefill_chunk=32)
    for length in (1, 5, 8, 9, 130):
        session = script.product.session(shape, speculation=False)
        session.prefill(1, script.request(length))
        before = readable_state(session.state, shape, 1, unseeded=True)
        poison_unreadable(session.state, shape, [], value)
        restore(session.state, shape, 1, before)
        session.launch("seed", 1)
        script.assert_drafting(readable_state(session.state, shape, 1), 3)


@poisons
def test_slot_reuse_without_clearing(product_of, value):
    """What a finished request left, replaced by poison, is invisible to the slot's next request."""
    product = product_of("tiny")
    shape = product.shape(3, (1,))
    expected = [product.generate([request], shape)[0].tokens for request in three_requests(product)]
    session = product.session(shape)
    for request, tokens in zip(reversed(three_requests(product)), reversed(expected), strict=True):
        poison_everything(session, value)
        assert session.generate([request])[0].tokens == tokens
