"""The round simulation: the same tokens as one-at-a-time decoding, every acceptance count, every ending."""

from collections import Counter

import pytest
import torch

from tests.oracles.cache_free_rounds import Generation, Request, plain, speculative
from tests.oracles.synthetic import CASES

# Below this a tie may rightly fall either way, because a longer forward sums in another order.
TIE = 1e-4


def _assert_same(speculated: Generation, reference: Generation) -> None:
    for index, (found, expected) in enumerate(zip(speculated.token_ids, reference.token_ids, strict=False)):
        if found != expected:
            assert reference.margins[index] < TIE, f"token {index}: {found}, expected {expected}"
            return
    assert speculated.token_ids == reference.token_ids
    assert speculated.finish_reason == reference.finish_reason


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_plain_decoding(oracle_of, name, temperature):
    oracle = oracle_of(name)
    request = Request(oracle.prompt(11, seed=21), max_new_tokens=24, temperature=temperature, seed=5)
    reference = plain(oracle.target, request)
    assert len(reference.token_ids) == 24
    _assert_same(speculative(oracle.target, oracle.nextn, request, k=3), reference)


@pytest.mark.parametrize("length", [1, 2, 125, 127])
def test_prompt_lengths_around_the_compression_blocks(oracle_of, length):
    oracle = oracle_of("tiny")
    request = Request(oracle.prompt(length, seed=22), max_new_tokens=8)
    _assert_same(speculative(oracle.target, oracle.nextn, request, k=5), plain(oracle.target, request))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_acceptance_count_occurs(oracle_of, k, temperature):
    oracle = oracle_of("window_only")
    counts: Counter[int] = Counter()
    for seed in range(4):
        request = Request(oracle.prompt(9, seed), max_new_tokens=60, temperature=temperature, seed=seed)
        counts.update(one.accepted for one in speculative(oracle.target, oracle.nextn, request, k).rounds)
    assert set(counts) == set(range(k + 1)), counts


def test_k_zero_is_plain_decoding(oracle_of):
    oracle = oracle_of("window_only")
    request = Request(oracle.prompt(9, seed=1), max_new_tokens=12)
    rounds, reference = speculative(oracle.target, oracle.nextn, request, k=0), plain(oracle.target, request)
    assert rounds.token_ids == reference.token_ids
    assert rounds.accept_lens == reference.accept_lens == [1] * 11


def test_round_records_describe_the_output(oracle_of):
    oracle = oracle_of("window_only")
    request = Request(oracle.prompt(9, seed=2), max_new_tokens=30)
    result = speculative(oracle.target, oracle.nextn, request, k=3)
    emitted = [token for one in result.rounds for token in one.emitted]
    assert result.token_ids[1:] == emitted
    position = len(request.prompt)
    for one in result.rounds:
        assert one.position == position
        assert one.drafts[: one.accepted] == one.drawn[: one.accepted]
        position += len(one.emitted)
    # The last round is cut to the length limit, its acceptance is not.
    assert all(len(one.emitted) == one.accepted + 1 for one in result.rounds[:-1])
    assert result.finish_reason == "length"


def test_end_token_inside_an_accepted_block(oracle_of):
    """Everything after the end token is cut, at whichever place of a round it falls."""
    oracle = oracle_of("window_only")
    free = Request(oracle.prompt(9, seed=3), max_new_tokens=40)
    uncut = speculative(oracle.target, oracle.nextn, free, k=3).token_ids
    for index in range(12):
        eos = uncut[index]
        request = Request(free.prompt, max_new_tokens=40, eos=(eos,))
        result = speculative(oracle.target, oracle.nextn, request, k=3)
        assert result.token_ids == uncut[: uncut.index(eos) + 1]
        assert result.finish_reason == "stop"
        assert result.token_ids == plain(oracle.target, request).token_ids


@pytest.mark.parametrize("limit", range(1, 8))
def test_length_limit_cuts_a_block(oracle_of, limit):
    oracle = oracle_of("window_only")
    prompt = oracle.prompt(9, seed=3)
    uncut = speculative(oracle.target, oracle.nextn, Request(prompt, max_new_tokens=20), k=3).token_ids
    result = speculative(oracle.target, oracle.nextn, Request(prompt, max_new_tokens=limit), k=3)
    assert result.token_ids == uncut[:limit]
    assert result.finish_reason == "length"
    # An end token as the very last allowed token still counts as a stop, one beyond it does not.
    last = uncut[limit - 1]
    beyond = next(token for token in uncut[limit:] if token not in uncut[:limit])
    stop = speculative(oracle.target, oracle.nextn, Request(prompt, limit, eos=(last,)), k=3)
    assert stop.finish_reason == "stop"
    unseen = speculative(oracle.target, oracle.nextn, Request(prompt, limit, eos=(beyond,)), k=3)
    assert unseen.finish_reason == "length"


def test_finished_by_the_first_token_needs_no_round(oracle_of):
    oracle = oracle_of("window_only")
    result = speculative(oracle.target, oracle.nextn, Request(oracle.prompt(9, seed=3), 1), k=3)
    assert len(result.token_ids) == 1 and result.rounds == [] and result.accept_lens == []


@pytest.mark.parametrize("name", ["tiny", "c128_then_c4"])
def test_drafts_of_each_round_written_out_by_hand(oracle_of, name):
    """Tokens cannot show a wrong draft, only a lower acceptance, so the drafts are derived a second way.

    All target rows come from one forward over the finished text, all first drafts from one NextN forward
    over all of its pairs, and nothing is cut to the window.
    """
    oracle = oracle_of(name)
    request = Request(oracle.prompt(20, seed=23), max_new_tokens=30)
    result = speculative(oracle.target, oracle.nextn, request, k=3)
    text = [*request.prompt, *result.token_ids]
    streams = oracle.target.forward(text).streams  # [T, M, H]
    pairs = len(text) - 1
    logits, own = oracle.nextn.nextn_forward(streams[:pairs], text[1:], list(range(pairs)))
    for one in result.rounds:
        bonus = one.position
        first = int(logits[bonus - 1].argmax())
        second_logits, second_own = oracle.nextn.nextn_forward(
            torch.cat([streams[:bonus], own[bonus - 1 : bonus]]),
            [*text[1 : bonus + 1], first],
            list(range(bonus + 1)),
        )
        second = int(second_logits[-1].argmax())
        third_logits, _ = oracle.nextn.nextn_forward(
            torch.cat([streams[:bonus], own[bonus - 1 : bonus], second_own[-1:]]),
            [*text[1 : bonus + 1], first, second],
            list(range(bonus + 2)),
        )
        assert min(one.draft_margins) > TIE
        assert one.drafts == (first, second, int(third_logits[-1].argmax()))
