"""ONNX artifacts beside those of AOTInductor from one checkpoint: what both compute is the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session
from nextn.runtime.contract.graph_spec import StateSpec
from tests.conftest import CompiledArtifacts
from tests.integration.conftest import Ask, asks
from tests.integration.test_onnx_executor import outcomes, run

pytestmark = pytest.mark.full

TWINS = {1: "steps_1", 2: "avx2", 3: "speculative"}
"""Artifacts of the same weights and depth; their buckets are others, which no token depends on."""

STATE_TOLERANCE = 5e-5
"""Measured: 8e-6."""

LONGEST = 150


def requests(vocab_size: int, temperature: float) -> list[Ask]:
    first = 0 if temperature == 0 else 1000
    return asks(vocab_size, 30, longest=LONGEST, new_tokens=24, temperature=temperature, first=first)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("steps", TWINS)
def test_tokens_and_acceptance(
    compiled_artifact: CompiledArtifacts, steps: int, temperature: float, slots: int
) -> None:
    found = []
    for name, used in ((f"onnx_steps_{steps}", slots), (TWINS[steps], 0)):
        with Model(compiled_artifact(name)) as model, model.session(slots=used) as session:
            found.append(outcomes(run(session, requests(model.info.vocab_size, temperature))))
    assert found[0] == found[1]
    lens = {length for _, accept_lens, _ in found[0] for length in accept_lens}
    assert lens == set(range(1, steps + 2)), "every acceptance occurs"


def state_after(artifact: Path, temperature: float, **options: bool) -> dict[str, torch.Tensor]:
    """Of one session, after all requests; without the scratch slot, whose rows are anyone's."""
    with Model(artifact) as model, model.session(**options) as session:
        run(session, requests(model.info.vocab_size, temperature)[:8])
        slots = model.manifest.limits.slots
        return {spec.name: rows_of_slots(session, spec, slots) for spec in model.manifest.state}


def rows_of_slots(session: Session, spec: StateSpec, slots: int) -> torch.Tensor:
    content = bytearray(session.state(spec.name))
    rows = torch.frombuffer(content, dtype=getattr(torch, spec.dtype)).view(spec.shape(slots))
    return rows[: slots * spec.rows_per_slot]


OPTIONS: Sequence[dict[str, bool]] = ({}, {"phases": True}, {"speculation": False})


@pytest.mark.parametrize("options", OPTIONS, ids=["round", "phases", "plain"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_state(compiled_artifact: CompiledArtifacts, temperature: float, options: dict[str, bool]) -> None:
    """Both artifacts have the same buckets, so that requests take the same slots."""
    ours = state_after(compiled_artifact("onnx_steps_3"), temperature, **options)
    native = state_after(compiled_artifact("speculative"), temperature, **options)
    assert ours.keys() == native.keys()
    for name, expected in native.items():
        difference = float((ours[name].double() - expected.double()).abs().max())
        assert difference <= STATE_TOLERANCE, (name, difference)
    assert float(native["target_streams"].abs().max()) > 0.1
