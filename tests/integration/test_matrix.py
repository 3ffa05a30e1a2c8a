"""Artifacts of other depths, shapes, dtypes and instruction sets: each is what it was compiled from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nextn.runtime.golden import selftest
from nextn.runtime.model import Model
from nextn.runtime.session import SessionResult
from tests.conftest import MATRIX, CompiledArtifacts
from tests.integration.conftest import Ask, asks, draw_scores, run_eager, run_native
from tests.oracles import cache_free_rounds
from tests.oracles.hugging_face import load_target
from tests.oracles.nextn_twin import load_nextn

pytestmark = pytest.mark.full

LONGEST = 150
"""Beyond nine chunks, one C128 block and every window."""

TIE = 1e-4
"""Draws closer than this may fall either way in float32; such a prompt is skipped, and counted."""

BFLOAT16_TIE = 0.25
"""Logits reach 10 and more, where neighbouring bfloat16 numbers are 0.06 apart."""


@dataclass(frozen=True)
class Compiled:
    """One artifact of the matrix, open, and the checkpoint it was made from."""

    artifact: Path
    checkpoint: Path
    model: Model

    @property
    def dtype(self) -> str:
        return self.model.manifest.target.dtype

    def asks(self, count: int, temperature: float, new_tokens: int = 24, first: int = 0) -> list[Ask]:
        return asks(
            self.model.info.vocab_size,
            count,
            longest=LONGEST,
            new_tokens=new_tokens,
            temperature=temperature,
            first=first,
        )


@pytest.fixture(scope="module", params=MATRIX)
def compiled(request: pytest.FixtureRequest, compiled_artifact: CompiledArtifacts) -> Iterator[Compiled]:
    artifact = compiled_artifact(request.param)
    checkpoint = Path(compiled_artifact.checkpoint(MATRIX[request.param].checkpoint))
    with Model(artifact) as model:
        yield Compiled(artifact, checkpoint, model)


def require_float32(compiled: Compiled) -> None:
    if compiled.dtype != "float32":
        pytest.skip("bfloat16 modules round after every operation, compiled graphs after every fused one")


def outcomes(results: list[SessionResult]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(one.tokens, one.accept_lens) for one in results]


def test_golden_vectors(compiled: Compiled) -> None:
    checks = list(selftest(compiled.model))
    assert len(checks) >= 10
    assert not [check for check in checks if not check.passed]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculative_tokens_equal_plain_tokens(compiled: Compiled, temperature: float) -> None:
    """Five requests a slot; in bfloat16 up to the first near tie.

    A window's rows round differently from a single row's, in float32 by last bits, which no draw here is
    close enough to show, but in bfloat16 by whole hundredths of a logit.
    """
    requests = compiled.asks(10, temperature)
    plain = run_native(compiled.model, requests, speculation=False)
    speculative = run_native(compiled.model, requests)
    assert {one.finish_reason for one in plain + speculative} == {"length"}
    for ask, one, other in zip(requests, speculative, plain, strict=True):
        if one.tokens != other.tokens:
            assert compiled.dtype == "bfloat16"
            assert_near_tie(compiled, ask, one.tokens, other.tokens)


def assert_near_tie(compiled: Compiled, ask: Ask, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """The first different token could as well have been the other one, says the eager model."""
    first = next(i for i, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
    scores = draw_scores(compiled.artifact, ask, expected[:first])
    for token in (found[first], expected[first]):
        assert scores.max() - scores[token] < BFLOAT16_TIE, (first, token)


def test_phases_equal_the_round(compiled: Compiled) -> None:
    requests = compiled.asks(5, 0.8)
    fused, phases = run_native(compiled.model, requests), run_native(compiled.model, requests, phases=True)
    assert outcomes(phases) == outcomes(fused)


@pytest.mark.parametrize("speculation", [True, False])
def test_compiled_equals_eager(compiled: Compiled, speculation: bool) -> None:
    """Tokens, and the acceptance of every round."""
    require_float32(compiled)
    requests = compiled.asks(6, 0.8)
    native = run_native(compiled.model, requests, speculation=speculation)
    eager = run_eager(compiled.artifact, requests, speculation=speculation)
    assert outcomes(native) == [(tuple(one.tokens), tuple(one.accept_lens)) for one in eager]


def test_rounds_equal_the_cache_free_simulation(compiled: Compiled) -> None:
    """Against Hugging Face and the NextN twin, recomputed from token 0 every round."""
    require_float32(compiled)
    target = load_target(compiled.checkpoint)
    nextn = load_nextn(compiled.checkpoint, target)
    steps = compiled.model.info.num_steps
    skipped = 0
    requests = [*compiled.asks(2, 0.0, first=20), *compiled.asks(2, 0.8, first=23)]
    for ask, result in zip(requests, run_native(compiled.model, requests), strict=True):
        request = cache_free_rounds.Request(
            ask.prompt, ask.max_new_tokens, temperature=ask.temperature, seed=ask.seed
        )
        expected = cache_free_rounds.speculative(target, nextn, request, steps)
        if expected.smallest_margin < TIE:
            skipped += 1
            continue
        assert list(result.tokens) == expected.token_ids
        assert list(result.accept_lens) == expected.accept_lens
    assert skipped <= 1
