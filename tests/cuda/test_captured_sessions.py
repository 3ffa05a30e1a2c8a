"""Exported programs captured as CUDA graphs: whole sessions against the eager modules on the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from nextn.graphs.eager_session import EagerRequest
from nextn.runtime.bindings.model import Model
from nextn.runtime.selftest.golden_runs import selftest
from tests.conftest import CompiledArtifacts
from tests.integration.conftest import Ask, asks, eager_session, run_native

STATE_TOLERANCE = 1e-3
"""Float32 products of a GPU add up in another order than the host's."""


@pytest.fixture(scope="module")
def artifact(compiled_artifact: CompiledArtifacts) -> Path:
    """k = 2, batch sizes 1 and 2, one layer of each kind, in float32."""
    return compiled_artifact("exported_cuda")


@pytest.fixture(scope="module")
def model(artifact: Path) -> Iterator[Model]:
    with Model(artifact) as model:
        yield model


def requests_of(model: Model) -> list[Ask]:
    """More than slots, past a chunk and a C128 block, greedy and sampled."""
    vocabulary = model.info.vocab_size
    greedy = asks(vocabulary, 6, longest=150, new_tokens=24, temperature=0.0)
    return [*greedy, *asks(vocabulary, 6, longest=150, new_tokens=24, temperature=0.8, first=6)]


@pytest.mark.parametrize("mode", [{}, {"speculation": False}, {"phases": True}], ids=str)
def test_sessions_equal_the_eager_modules(artifact: Path, model: Model, mode: dict[str, bool]) -> None:
    wanted = [
        EagerRequest(ask.prompt, ask.max_new_tokens, seed=ask.seed, temperature=ask.temperature)
        for ask in requests_of(model)
    ]
    eager = eager_session(artifact, **mode)
    eager.generate(wanted)
    found = run_native(model, requests_of(model), **mode)
    assert [list(result.tokens) for result in found] == [request.tokens for request in wanted]
    assert [list(result.accept_lens) for result in found] == [request.accept_lens for request in wanted]


def test_state_is_that_of_the_eager_modules(artifact: Path, model: Model) -> None:
    eager = eager_session(artifact)
    [ask] = requests_of(model)[:1]
    eager.generate([EagerRequest(ask.prompt, ask.max_new_tokens)])
    with model.session() as session:
        session.submit(ask.prompt, max_new_tokens=ask.max_new_tokens, ignore_eos=True)
        session.run()
        for spec in model.manifest.state:
            found = torch.frombuffer(bytearray(session.state(spec.name)), dtype=getattr(torch, spec.dtype))
            expected = eager.state.get_buffer(spec.name)[: spec.rows_per_slot]
            rows = found.view(spec.shape(model.info.slots))[: spec.rows_per_slot]
            assert torch.allclose(rows.double(), expected.double(), rtol=0, atol=STATE_TOLERANCE), spec.name


def test_golden_runs_replay(model: Model) -> None:
    assert [check for check in selftest(model) if not check.passed] == []


def test_a_steady_round_is_one_launch_and_one_copy(model: Model) -> None:
    with model.session() as session:
        for index in range(2):
            session.submit([1 + index, 2, 3], max_new_tokens=60, ignore_eos=True)
        for _ in range(4):
            session.turn()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            session.turn()
    calls = [event.name for event in profiled.events()]
    assert calls.count("cudaGraphLaunch") == 1
    assert calls.count("cudaMemcpyAsync") == 1
    assert calls.count("cudaLaunchKernel") == 0
