"""Prefill in any chunks, decoding one by one, and windows of any width are the same computation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from nextn.graphs.state import State
from nextn.graphs.window import Window
from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS
from tests.oracles.synthetic import CASES
from tests.rounds.host import prefill_chunks
from tests.rounds.product import Product
from tests.rounds.readable_state import readable_state
from tests.rounds.script import BOUNDARIES, Script

LOGITS_TOLERANCE = 1e-4
"""Logits reach 20 in fp32 and pass through every layer; the largest measured difference is 1.7e-5."""

SMALL_CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
LARGE_CHUNKS = (127, 128, 129, 160)
"""All exceed the sliding-window ring of most cases; 160 exceeds the C128 compressor ring too."""

EXPORTED_CHUNKS = (7, 16, 129)
"""A program takes seconds to export, so the other sizes run the modules."""

case_names = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "tiny" else pytest.mark.full) for name in CASES]
)


def chunks_of_cases(tiny: tuple[int, ...], others: tuple[int, ...]) -> pytest.MarkDecorator:
    """All chunk sizes on the default case, a few on the others."""
    values = [pytest.param("tiny", chunk) for chunk in tiny]
    values += [
        pytest.param(name, chunk, marks=pytest.mark.full)
        for name in CASES
        for chunk in others
        if name != "tiny"
    ]
    return pytest.mark.parametrize(("name", "chunk"), values)


def chunked_positions(script: Script, length: int, chunk: int) -> Iterator[int]:
    """Prefill the script's first `length` tokens; yields the position after each chunk, state compared."""
    product = script.product
    shape = product.shape(max_seq_len=script.max_seq_len, prefill_chunk=chunk)
    session = product.session(shape, eager=chunk not in EXPORTED_CHUNKS)
    request = script.request(length)
    for position in prefill_chunks(session, 0, request):
        snapshot = readable_state(session.state, shape, 0)
        if position == length:
            script.assert_plain(snapshot)
            assert request.tokens == [script.tokens[length]]
        else:
            # Inside a prompt there is no bonus yet, and nothing has been taken off `remaining`.
            snapshot["control"] = script.plain[position]["control"]
            script.assert_plain(snapshot)
        yield position


@chunks_of_cases(SMALL_CHUNKS, (3, 8))
def test_state_after_every_chunk_of_a_long_prompt(script_of, name, chunk):
    """Every chunk seam is a place where state is carried over; whole chunks and a partial last one."""
    positions = list(chunked_positions(script_of(name), 133, chunk))
    assert positions == [*range(chunk, 133, chunk), 133]


@chunks_of_cases((11, 16, *LARGE_CHUNKS), (16, 160))
def test_prompt_lengths_around_every_boundary(script_of, name, chunk):
    """The padding of a partial chunk must reach no live row, wherever the prompt ends."""
    script = script_of(name)
    for length in BOUNDARIES:
        assert list(chunked_positions(script, length, chunk))[-1] == length


@chunks_of_cases(LARGE_CHUNKS, (129, 160))
def test_chunks_larger_than_every_ring(script_of, name, chunk):
    """A chunk that laps the ring leaves only its newest rows there, each once."""
    assert list(chunked_positions(script_of(name), 299, chunk))[-1] == 299


@case_names
def test_logits_are_the_same_in_windows_of_any_width(product_of, script_of, name):
    product, ids = product_of(name), tuple(script_of(name).tokens[:200])
    reference, reference_streams = product.target_rows(ids, len(ids))
    for width in (1, 4, 7, 9, 16, 127, 128, 129):
        logits, streams = product.target_rows(ids, width)
        torch.testing.assert_close(logits, reference, rtol=0, atol=LOGITS_TOLERANCE)
        torch.testing.assert_close(streams, reference_streams, rtol=0, atol=LOGITS_TOLERANCE)


def window_logits(product: Product, state: State, ids: list[int], start: int, width: int) -> torch.Tensor:
    """Logits `[width, vocab]` of `width` rows from `start` in slot 0."""
    window = Window(torch.tensor([0]), torch.tensor([start]), torch.tensor([width]), width, 1)
    streams = product.model().target(torch.tensor(ids[start : start + width]), window, state)
    return product.model().logits(product.model().target_hidden(streams))


def state_at(script: Script, position: int) -> State:
    """A state whose slot 0 has run the text before `position` in one chunk."""
    shape = script.product.shape(max_seq_len=script.max_seq_len, prefill_chunk=script.length)
    session = script.product.session(shape, eager=True)  # the windows that follow call the model itself
    session.prefill(0, script.request(position))
    return session.state


@case_names
def test_verify_windows_of_every_width_at_every_boundary(product_of, script_of, name):
    """Row j of a window of any width equals the row that plain decoding computes at its position.

    https://github.com/vllm-project/vllm-ascend/issues/9111: batched verification was less exact at larger k.
    """
    product, script = product_of(name), script_of(name)
    reference, _ = product.target_rows(tuple(script.tokens), len(script.tokens))
    for start in BOUNDARIES:
        state = state_at(script, start)
        before = {key: value.clone() for key, value in state.named_buffers()}
        for width in range(1, MAX_WINDOW_ROWS + 1):
            for key, value in state.named_buffers():
                value.copy_(before[key])
            logits = window_logits(product, state, script.tokens, start, width)
            expected = reference[start : start + width]
            torch.testing.assert_close(logits, expected, rtol=0, atol=LOGITS_TOLERANCE)
