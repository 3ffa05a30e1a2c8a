"""Every graph captures on an NPU's stream with nothing of the host in it; a steady round is one replay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from nextn.graphs.capture import DeviceSession, captured_graphs
from nextn.graphs.config import parse_model_config
from nextn.graphs.driver import GraphKey, Request
from nextn.graphs.model import Model
from nextn.graphs.phases import graph_keys
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.graphs.target_phases import Accept
from nextn.runtime.contract.blocks import Result
from tests.fakes.cann.log import FakeCann, Record
from tests.oracles.synthetic import CASES

ACCEPT: list[GraphKey] = [("accept", 2)]


@pytest.fixture(scope="module")
def shape() -> SessionShape:
    config, _ = parse_model_config(CASES["tiny"].config, "config.json")
    return SessionShape(config, num_steps=2, batch_sizes=(2,), max_seq_len=64, prefill_chunk=8)


@pytest.fixture(scope="module")
def model(shape: SessionShape) -> Model:
    return Model(shape).npu()


@pytest.fixture
def state(shape: SessionShape, cann: FakeCann) -> Iterator[State]:
    made = State(shape).npu()
    with cann.strict():
        cann.clear()
        yield made


def kernels_of(records: list[Record]) -> list[int]:
    """Of every captured graph, in order."""
    return [record.tasks for record in records if record.kind == "capture_end"]


def illegal(records: list[Record]) -> list[Record]:
    return [record for record in records if record.is_illegal_in_capture]


def allocations(records: list[Record]) -> int:
    return sum(record.nbytes for record in records if record.kind == "allocate" and record.captured)


def test_every_graph_captures(cann: FakeCann, model: Model, state: State, shape: SessionShape) -> None:
    graphs = captured_graphs(model, state, shape, "npu")
    records = cann.take()
    assert list(graphs) == graph_keys(shape)
    counts = dict(zip(graphs, kernels_of(records), strict=True))
    assert not illegal(records)
    phases = ("verify", "accept", "draft_extend", "draft_step")
    # The fused graph is its phases: at k = 2 one step.
    assert counts["round", 2] == sum(counts[name, 2] for name in phases) > 1000


def steady_round(cann: FakeCann, session: DeviceSession) -> list[Record]:
    """What a round asks of CANN once the slots of its bucket are there."""
    for _ in range(2):
        # No kernel runs, so results are no results: put the requests back each time.
        session.live = {slot: Request([1], 20) for slot in (0, 1)}
        cann.clear()
        session.round()
    return cann.take()


def test_a_steady_round_is_one_replay_and_one_copy(
    cann: FakeCann, model: Model, state: State, shape: SessionShape
) -> None:
    graphs = captured_graphs(model, state, shape, "npu", [("round", 2)])
    records = steady_round(cann, DeviceSession(shape, state, graphs))
    assert [record.kind for record in records if record.kind != "sync"] == ["replay", "copy"]
    (copy,) = [record for record in records if record.kind == "copy"]
    assert (copy.name, copy.nbytes) == ("D2H", (shape.slots + 1) * Result.WIDTH * 8)


class CopiesTwice(DeviceSession):
    def fetch_results(self) -> None:
        super().fetch_results()
        super().fetch_results()


def test_a_second_copy_is_seen(cann: FakeCann, model: Model, state: State, shape: SessionShape) -> None:
    graphs = captured_graphs(model, state, shape, "npu", [("round", 2)])
    records = steady_round(cann, CopiesTwice(shape, state, graphs))
    assert [record.kind for record in records if record.kind != "sync"] == ["replay", "copy", "copy"]


@pytest.mark.parametrize("wait", ["item", "cpu"])
def test_a_host_wait_inside_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    cann: FakeCann,
    model: Model,
    state: State,
    shape: SessionShape,
    wait: str,
) -> None:
    forward = Accept.forward

    def waits(self: Accept) -> tuple[()]:
        rows = forward(self)
        if torch.npu.is_current_stream_capturing():
            getattr(self.slots.sum(), wait)()
        return rows

    monkeypatch.setattr(Accept, "forward", waits)
    with pytest.raises(RuntimeError, match="107030"):
        captured_graphs(model, state, shape, "npu", ACCEPT)


def test_a_host_value_inside_is_seen(
    monkeypatch: pytest.MonkeyPatch, cann: FakeCann, model: Model, state: State, shape: SessionShape
) -> None:
    """It would be baked into every replay."""
    forward = Accept.forward

    def copies(self: Accept) -> tuple[()]:
        self.slots.copy_(torch.zeros(2, dtype=torch.int64, device="cpu"), non_blocking=True)
        return forward(self)

    monkeypatch.setattr(Accept, "forward", copies)
    with cann.strict(False):
        captured_graphs(model, state, shape, "npu", ACCEPT)
    assert illegal(cann.take())


def test_more_memory_inside_is_seen(
    monkeypatch: pytest.MonkeyPatch, cann: FakeCann, model: Model, state: State, shape: SessionShape
) -> None:
    captured_graphs(model, state, shape, "npu", ACCEPT)
    usual = allocations(cann.take())
    forward = Accept.forward

    def allocates(self: Accept) -> tuple[()]:
        self.kept = torch.empty(64 * 2**20, dtype=torch.uint8)
        return forward(self)

    monkeypatch.setattr(Accept, "forward", allocates)
    captured_graphs(model, state, shape, "npu", ACCEPT)
    assert allocations(cann.take()) >= usual + 64 * 2**20
