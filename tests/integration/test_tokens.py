"""Compiled graphs give the tokens, and the acceptance, of everything they stand for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from nextn.runtime.bindings.model import Model
from tests.conftest import RECIPES, CompiledArtifacts
from tests.integration.conftest import Ask, asks, run_eager, run_native
from tests.oracles import cache_free_rounds
from tests.oracles.hugging_face import load_target
from tests.oracles.nextn_twin import load_nextn

LONGEST = 150  # beyond one C128 block

MARGIN = 1e-4
"""Draws closer than this may fall either way; none of the prompts below has one."""


@pytest.mark.parametrize(("temperature", "first"), [(0.0, 0), (0.8, 1000)])
def test_speculative_tokens_equal_plain_tokens(model: Model, temperature: float, first: int) -> None:
    """200 prompts at each temperature, in batches of four and alone."""
    requests = asks(
        model.info.vocab_size, 200, longest=LONGEST, new_tokens=24, temperature=temperature, first=first
    )
    plain = [result.tokens for result in run_native(model, requests, speculation=False)]
    for slots in (0, 1):
        speculative = run_native(model, requests, slots=slots)
        assert [result.tokens for result in speculative] == plain
        assert {length for result in speculative for length in result.accept_lens} == {1, 2, 3, 4}


def test_eos_inside_an_accepted_window(speculative: Path, model: Model) -> None:
    """https://github.com/huggingface/transformers/issues/47912: output ends at EOS, whatever was accepted."""
    requests = [
        replace(ask, ignore_eos=False)
        for ask in asks(model.info.vocab_size, 120, longest=40, new_tokens=60, temperature=1.0, first=5000)
    ]
    results = run_native(model, requests)
    plain = run_native(model, requests, speculation=False)
    eager = run_eager(speculative, requests[:12])
    assert [(one.tokens, one.finish_reason) for one in results] == [
        (one.tokens, one.finish_reason) for one in plain
    ]
    assert [tuple(one.tokens) for one in eager] == [one.tokens for one in results[:12]]
    stopped = [one for one in results if one.finish_reason == "stop"]
    eos = model.manifest.model.eos_token_ids
    assert all(one.tokens[-1] in eos and not set(one.tokens[:-1]) & set(eos) for one in stopped)
    trimmed = [one for one in stopped if 1 + sum(one.accept_lens) > len(one.tokens)]
    assert len(trimmed) >= 3, "EOS must fall inside accepted windows, not only at their ends"


def test_phases_equal_round(model: Model) -> None:
    requests = asks(model.info.vocab_size, 12, longest=LONGEST, new_tokens=40, temperature=0.8)
    fused, phases = run_native(model, requests), run_native(model, requests, phases=True)
    assert [(one.tokens, one.accept_lens) for one in phases] == [
        (one.tokens, one.accept_lens) for one in fused
    ]


@pytest.mark.parametrize("speculation", [True, False])
def test_compiled_equals_eager(speculative: Path, model: Model, speculation: bool) -> None:
    requests = asks(model.info.vocab_size, 12, longest=LONGEST, new_tokens=24, temperature=0.8)
    native = run_native(model, requests, speculation=speculation)
    eager = run_eager(speculative, requests, speculation=speculation)
    assert [list(one.tokens) for one in native] == [one.tokens for one in eager]
    assert [list(one.accept_lens) for one in native] == [one.accept_lens for one in eager]


def test_rounds_equal_the_cache_free_simulation(compiled_artifact: CompiledArtifacts, model: Model) -> None:
    """Against Hugging Face and the NextN twin, recomputed from token 0 every round."""
    checkpoint = compiled_artifact.checkpoint(RECIPES["speculative"].checkpoint)
    target = load_target(checkpoint)
    nextn = load_nextn(checkpoint, target)
    seen: Counter[int] = Counter()
    for temperature in (0.0, 0.8):
        requests = asks(model.info.vocab_size, 4, longest=LONGEST, new_tokens=30, temperature=temperature)
        for ask, result in zip(requests, run_native(model, requests), strict=True):
            request = cache_free_rounds.Request(
                ask.prompt, ask.max_new_tokens, temperature=temperature, seed=ask.seed
            )
            expected = cache_free_rounds.speculative(target, nextn, request, k=3)
            assert expected.smallest_margin > MARGIN, "choose another prompt: it holds a near tie"
            assert list(result.tokens) == list(expected.token_ids)
            assert list(result.accept_lens) == list(expected.accept_lens)
            seen.update(result.accept_lens)
    assert all(seen[length] >= 5 for length in (1, 2, 3, 4)), seen


@pytest.mark.full
def test_plain_artifact_equals_plain_run_of_the_speculative_one(
    compiled_artifact: CompiledArtifacts, model: Model
) -> None:
    """`prefill` and `decode` do not depend on k."""
    requests = asks(model.info.vocab_size, 6, longest=LONGEST, new_tokens=24, temperature=0.8)
    with Model(compiled_artifact("plain")) as plain:
        assert plain.info.num_steps == 0
        tokens = [one.tokens for one in run_native(plain, requests)]
    assert tokens == [one.tokens for one in run_native(model, requests, speculation=False)]


@pytest.mark.parametrize("count", [1, 3, 5])
def test_company_and_slots_change_nothing(model: Model, count: int) -> None:
    """One, three in a bucket of four, and more requests than slots; slots are reused without clearing."""
    requests = asks(model.info.vocab_size, count, longest=60, new_tokens=20, temperature=0.8)
    alone = [run_native(model, [ask])[0].tokens for ask in requests]
    assert [one.tokens for one in run_native(model, requests)] == alone
    assert [one.tokens for one in run_native(model, requests[::-1])] == alone[::-1]


def test_launches_of_a_round(model: Model) -> None:
    """k = 3: one launch fused, five in phases, three NextN forwards either way."""
    ask = Ask((5, 6, 7), 40)
    for phases, launches in ((False, 1), (True, 5)):
        with model.session(phases=phases) as session:
            session.submit(ask.prompt, max_new_tokens=ask.max_new_tokens, ignore_eos=True)
            session.run()
            metrics = session.metrics()
        assert metrics.num_rounds > 5
        assert metrics.num_prefill_launches == 1
        seeds = 1
        before_rounds = metrics.num_prefill_launches + seeds
        assert metrics.num_graph_launches - before_rounds == launches * metrics.num_rounds
        assert metrics.num_draft_forwards_extend == metrics.num_rounds
        assert metrics.num_draft_forwards_step == 2 * metrics.num_rounds
