"""Where a request ends inside a window: EOS, the token limit, and the artifact's maximum length.

A round may draw tokens past the end. They are cut, and the request ends in the state of the plain run.
"""

from __future__ import annotations

import pytest
import torch

from nextn.graphs.eager_session import EagerRequest, EagerSession
from nextn.runtime.contract.blocks import MAX_EOS, Control, Result
from nextn.runtime.contract.errors import RequestError
from tests.rounds.readable_state import DRAFTING, assert_same_state, position_of, readable_state
from tests.rounds.script import TOLERANCE, Script, force_drafts

STEPS = 3
START = 20


def ending_request(script: Script, start: int, new_tokens: int, eos: tuple[int, ...] = ()) -> EagerRequest:
    base = script.request(start)
    return EagerRequest(base.prompt, new_tokens, eos, seed=base.seed, temperature=base.temperature)


def run_forced(
    script: Script, request: EagerRequest, *, num_steps: int = STEPS, speculation: bool = True
) -> EagerSession:
    """Run `request` with every draft right, so that each window is as full as it can be."""
    shape = script.product.shape(num_steps, (1,), script.max_seq_len, prefill_chunk=32)
    session = script.product.session(shape, speculation=speculation)
    session.prefill(0, request)
    while session.live:
        if speculation:
            position = position_of(session.state, 0)
            force_drafts(session.state, 0, script.drafts(position, num_steps, num_steps))
        session.round()
    return session


def assert_same_ending(
    script: Script, start: int, new_tokens: int, eos: tuple[int, ...] = ()
) -> EagerRequest:
    """The forced speculative run ends like the plain one: tokens, reason, position and readable state."""
    plain, found = (ending_request(script, start, new_tokens, eos) for _ in range(2))
    plain_session = run_forced(script, plain, speculation=False)
    session = run_forced(script, found)
    assert found.tokens == plain.tokens
    assert found.finish_reason == plain.finish_reason
    expected = readable_state(plain_session.state, session.shape, 0)
    snapshot = readable_state(session.state, session.shape, 0)
    assert torch.equal(snapshot["control"], expected["control"])
    reference = script.plain[int(expected["control"][0])]
    # The script goes on where this request ends; its rows are the same.
    script.assert_plain({**snapshot, "control": reference["control"]})
    return found


def first_seen(script: Script, start: int, index: int) -> int:
    """A start not before `start` whose generated token number `index` is not generated earlier."""
    while script.tokens[start + index] in script.tokens[start : start + index]:
        start += 1
    return start


@pytest.mark.parametrize("index", range(1 + 2 * (STEPS + 1)))
def test_end_token_at_every_place_of_a_window(script_of, index):
    """Token 0 comes from the prefill, 1..4 from the first round, 5..8 from the second.

    https://github.com/huggingface/transformers/issues/47912: EOS inside the accepted block not honoured.
    """
    script = script_of("tiny")
    start = first_seen(script, START, index)
    eos = script.tokens[start + index]
    found = assert_same_ending(script, start, 40, (eos,))
    assert found.tokens == script.tokens[start : start + index + 1]
    assert found.finish_reason == "stop"
    assert found.accept_lens == [STEPS + 1] * -(-index // (STEPS + 1))


@pytest.mark.parametrize("new_tokens", range(1, 2 + 2 * (STEPS + 1)))
def test_token_limit_at_every_place_of_a_window(script_of, new_tokens):
    script = script_of("tiny")
    found = assert_same_ending(script, START, new_tokens)
    assert found.tokens == script.tokens[START : START + new_tokens]
    assert found.finish_reason == "length"
    assert found.accept_lens == [STEPS + 1] * -(-(new_tokens - 1) // (STEPS + 1))


@pytest.mark.parametrize("index", range(1, 2 + STEPS))
@pytest.mark.parametrize("limit", range(1, 3 + STEPS))
def test_end_token_and_token_limit_in_one_window(script_of, index, limit):
    """Whichever comes first decides; an end token beyond the limit is no stop.

    https://github.com/sgl-project/sglang/issues/31599: the limit masked a stop within the budget.
    """
    script = script_of("tiny")
    start = first_seen(script, START, index)
    found = assert_same_ending(script, start, limit, (script.tokens[start + index],))
    assert len(found.tokens) == min(index + 1, limit)
    assert found.finish_reason == ("stop" if index < limit else "length")


def test_all_end_tokens_of_a_request_count(script_of):
    script = script_of("tiny")
    start = first_seen(script, START, 6)
    absent = [token for token in range(script.product.config.vocab_size) if token not in script.tokens]
    eos = (*absent[: MAX_EOS - 1], script.tokens[start + 6])
    found = assert_same_ending(script, start, 40, eos)
    assert len(found.tokens) == 7 and found.finish_reason == "stop"


@pytest.mark.parametrize("room", range(STEPS + 3))
def test_prompts_up_to_the_maximum_length(product_of, room):
    """Prompts of N - j tokens, j = 0..k + 2: an error at 0, else exactly j tokens, and the plain ones.

    https://github.com/vllm-project/vllm-ascend/issues/9221: crash near the maximum length with drafts.
    https://github.com/sgl-project/sglang/issues/19016: table overflow by the draft tokens.
    https://github.com/vllm-project/vllm/issues/58080: dummy drafts accepted there.
    """
    product = product_of("tiny")
    for max_seq_len in (31, 32, 128):
        # Programs of one length are enough; a compiled artifact has another.
        eager = max_seq_len != 32
        shape = product.shape(STEPS, (1,), max_seq_len)
        prompt = product.oracle.prompt(max_seq_len - room, seed=room)
        if room == 0:
            with pytest.raises(RequestError, match="prompt"):
                product.generate([EagerRequest(prompt, 50)], shape, eager=eager)
            continue
        session = product.session(shape, eager=eager)
        plain_session = product.session(shape, speculation=False, eager=eager)
        [found], [plain] = (one.generate([EagerRequest(prompt, 50)]) for one in (session, plain_session))
        snapshot, expected = (readable_state(one.state, shape, 0) for one in (session, plain_session))
        assert torch.equal(snapshot["control"], expected["control"])
        assert_same_state(snapshot, expected, TOLERANCE, leave_out=DRAFTING)
        [roomy] = product.generate([EagerRequest(prompt, room)], product.shape(STEPS, (1,), 192))
        assert found.tokens == plain.tokens == roomy.tokens
        assert len(found.tokens) == room
        assert found.finish_reason == plain.finish_reason == "length"


@pytest.mark.parametrize("graph", ["round", "decode"])
def test_finished_rows_replayed_stay_unchanged(script_of, graph):
    """Extra replays are harmless: nothing is emitted and no committed row, field or position moves."""
    script = script_of("tiny")
    session = run_forced(script, ending_request(script, START, 7))
    before = readable_state(session.state, session.shape, 0)
    for _ in range(3):
        session.launch(graph, 1)
        assert session.result(0, Result.OUT_COUNT) == [0]
        assert session.result(0, Result.ACCEPTED) == [-1]
        assert session.result(0, Result.FINISHED) == [1]
    after = readable_state(session.state, session.shape, 0)
    del before["draft"], after["draft"]  # redrawn by every round, and never verified again
    for name, rows in before.items():
        torch.testing.assert_close(after[name], rows, rtol=0, atol=1e-4)


def test_bonus_is_the_last_emitted_token(script_of):
    script = script_of("tiny")
    for new_tokens in (1, 3, 5, 6):
        session = run_forced(script, ending_request(script, START, new_tokens))
        control = session.state.get_buffer("control")[0]
        assert control[Control.BONUS.columns].tolist() == [script.tokens[START + new_tokens - 1]]
        assert control[Control.REMAINING.columns].tolist() == [0]
        assert control[Control.FINISHED.columns].tolist() == [1]
        assert position_of(session.state, 0) == START + new_tokens - 1
