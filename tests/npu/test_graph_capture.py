"""Exported programs on an NPU's streams: what a session asks of CANN, from the fake's log.

Every check has a twin that breaks what it checks. The fake runs no kernel: nothing is said of results.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch_npu

import nextn
from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session
from nextn.runtime.contract.blocks import Control, Result
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.executors import captured_graphs
from nextn.runtime.executors.capture.device import WARM_UPS, Device
from nextn.runtime.executors.capture.programs import Program
from nextn.runtime.executors.capture.session_graphs import SessionGraphs
from tests.conftest import CompiledArtifacts
from tests.fakes.cann.log import FakeCann, Record
from tests.npu.scripted_device import TOKEN, ScriptedGraphs, injected

PHASES = ("verify", "accept", "draft_extend", "draft_step")

SESSIONS = {
    "rounds": ({}, ["prefill.b1", "seed.b1", "round.b2"]),
    "phases": ({"phases": True}, ["prefill.b1", "seed.b1", *(f"{name}.b2" for name in PHASES)]),
    "plain": ({"speculation": False}, ["prefill.b1", "decode.b2"]),
}


@pytest.fixture(scope="module")
def artifact(compiled_artifact: CompiledArtifacts) -> Path:
    """k = 2, batch size 2."""
    return compiled_artifact("exported")


@pytest.fixture(scope="module")
def model(artifact: Path) -> Iterator[Model]:
    with Model(artifact) as model:
        yield model


@pytest.fixture
def strict(cann: FakeCann) -> Iterator[FakeCann]:
    with cann.strict():
        cann.clear()
        yield cann


def captured(records: list[Record]) -> list[int]:
    """Kernels of every captured graph, in order."""
    return [record.tasks for record in records if record.kind == "capture_end"]


def illegal(records: list[Record]) -> list[Record]:
    return [record for record in records if record.is_illegal_in_capture]


def allocated_inside(records: list[Record]) -> int:
    return sum(record.nbytes for record in records if record.kind == "allocate" and record.captured)


def crossings(records: list[Record]) -> list[tuple[str, int]]:
    """Copies between host and device, by direction and bytes."""
    return [(record.name, record.nbytes) for record in records if record.kind == "copy"]


@pytest.fixture(scope="module")
def kernels() -> dict[str, int]:
    """Of every graph, as the sessions below capture it."""
    return {}


@pytest.mark.parametrize("kind", SESSIONS)
def test_every_graph_captures(strict: FakeCann, model: Model, kernels: dict[str, int], kind: str) -> None:
    options, graphs = SESSIONS[kind]
    with model.session(**options):
        records = strict.take()
    assert not illegal(records)
    counts = dict(zip(graphs, captured(records), strict=True))
    assert all(count > 20 for count in counts.values())
    for graph, count in counts.items():
        assert kernels.setdefault(graph, count) == count, "a capture depends on nothing but its graph"


def test_graphs_share_a_stream_and_a_pool_and_are_warm(
    strict: FakeCann, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program runs on the stream of captures before it is captured there, into the memory of the first."""
    graphs: list[torch.npu.NPUGraph] = []

    class Kept(torch.npu.NPUGraph):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            graphs.append(self)

    monkeypatch.setattr(torch.npu, "NPUGraph", Kept)
    with model.session():
        records = strict.take()
        assert len(graphs) == 3 and len({graph.pool() for graph in graphs}) == 1
    launches = [record for record in records if record.kind == "launch"]
    (stream,) = {record.stream for record in launches if record.captured}
    kinds = [record.captured for record in launches if record.stream == stream]
    runs = [(captured, len(list(group))) for captured, group in itertools.groupby(kinds)]
    warm, captured = runs[0::2], runs[1::2]
    assert warm == [(False, WARM_UPS * number) for _, number in captured] and len(captured) == len(graphs)


def test_a_round_is_its_phases(kernels: dict[str, int]) -> None:
    """At k = 2 with one draft step."""
    if "round.b2" not in kernels or "verify.b2" not in kernels:
        pytest.skip("counts come from the tests before")
    assert kernels["round.b2"] == sum(kernels[f"{name}.b2"] for name in PHASES) > 1000


def start(model: Model, executor: type[SessionGraphs], **options: bool) -> tuple[Session, list[int]]:
    """Two requests, past their prompts and with the slots of their bucket written."""
    session = model.session(executor=executor(model), **options)
    ids = [session.submit([1 + i, 2, 3], max_new_tokens=20) for i in range(2)]
    for _ in range(3):
        session.turn()
    return session, ids


def steady_turn(
    cann: FakeCann, model: Model, executor: type[SessionGraphs] = ScriptedGraphs, **options: bool
) -> list[Record]:
    session, ids = start(model, executor, **options)
    with session:
        before = [len(session.result(one).tokens) for one in ids]
        cann.clear()
        session.turn()
        records = cann.take()
        assert [len(session.result(one).tokens) for one in ids] == [count + 1 for count in before]
    return records


RESULT_BYTES = 3 * Result.WIDTH * 8
"""Two slots and the scratch slot."""


def test_a_steady_round_is_one_replay_and_one_copy_of_results(strict: FakeCann, model: Model) -> None:
    records = steady_turn(strict, model)
    assert [record.kind for record in records if record.kind != "sync"] == ["replay", "copy"]
    assert crossings(records) == [("D2H", RESULT_BYTES)]
    assert sum(record.blocking for record in records) == 1


class ReadsTwice(ScriptedGraphs):
    def read(self, name: str) -> None:
        super().read(name)
        super().read(name)


def test_a_second_copy_is_seen(strict: FakeCann, model: Model) -> None:
    records = steady_turn(strict, model, ReadsTwice)
    assert crossings(records) == 2 * [("D2H", RESULT_BYTES)]
    assert sum(record.blocking for record in records) == 2


class Waits(ScriptedGraphs):
    def launch(self, graph: str) -> None:
        super().launch(graph)
        self.wait()


def test_a_wait_is_seen(strict: FakeCann, model: Model) -> None:
    assert sum(record.blocking for record in steady_turn(strict, model, Waits)) == 2


def test_separate_phases_are_a_replay_each(strict: FakeCann, model: Model) -> None:
    """Each but the last is waited for, to time it."""
    records = steady_turn(strict, model, phases=True)
    assert [record.kind for record in records if record.kind != "sync"] == [*["replay"] * 4, "copy"]
    assert sum(record.blocking for record in records) == 4


def test_a_request_crosses_as_its_control_row_and_its_prompt(strict: FakeCann, model: Model) -> None:
    """And no state: a prompt of two chunks of 16 tokens."""
    with model.session(executor=ScriptedGraphs(model)) as session:
        session.submit(list(range(1, 21)), max_new_tokens=4)
        strict.clear()
        session.turn()
        first = strict.take()
        session.turn()
        second = strict.take()
    chunk = [("H2D", 16 * 8), ("H2D", 8)]  # tokens and their number; the slot is 0, as it was
    rows = 2 * [("H2D", Control.WIDTH * 8)]  # the request's, and once a session that of padding
    assert sorted(crossings(first)) == sorted([*rows, *chunk])
    assert [record.kind for record in first if record.kind == "replay"] == ["replay"]
    # The last chunk: first token, seed; then the first round, whose slots are new to the device.
    assert sorted(crossings(second)) == sorted([*chunk, *2 * [("D2H", RESULT_BYTES)], ("H2D", 2 * 8)])
    assert [record.kind for record in second if record.kind == "replay"] == 3 * ["replay"]


@pytest.mark.parametrize("shape", [(64, 96), (4, 64, 96)])
@pytest.mark.parametrize(("layout", "format"), [("int8_row", "FRACTAL_NZ"), ("plain", "ND")])
def test_int8_weights_lie_in_blocks(cann: FakeCann, shape: tuple[int, ...], layout: str, format: str) -> None:
    """What a product reads, the transpose, is in the blocks; and it is no view that would be copied out."""
    weight = Device("npu").take_weight(torch.zeros(shape, dtype=torch.int8), layout)
    assert torch_npu.get_npu_format(weight).name == format
    assert (weight.shape, weight.dtype) == (shape, torch.int8)
    assert weight.transpose(-2, -1).is_contiguous() == (layout == "int8_row")


def test_a_closed_session_leaves_no_graph(cann: FakeCann, model: Model) -> None:
    before = cann.live().captured_graphs
    with model.session(speculation=False):
        assert cann.live().captured_graphs == before + 2
    assert cann.live().captured_graphs == before


def test_a_closed_model_keeps_no_weights(cann: FakeCann, artifact: Path) -> None:
    with Model(artifact) as model:
        with model.session(speculation=False):
            pass
        gc.collect()
        torch.npu.empty_cache()
        kept = cann.live().nbytes
    gc.collect()
    torch.npu.empty_cache()
    weights = sum(weight.nbytes for weight in model.manifest.weights.tensors)
    assert kept - cann.live().nbytes >= weights


def host_to_device(records: list[Record]) -> int:
    return sum(nbytes for name, nbytes in crossings(records) if name == "H2D")


def test_the_product_runs_requests(strict: FakeCann, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five for two slots, through `nextn.load`; weights cross once, however many sessions there are."""
    monkeypatch.setattr(captured_graphs, "make", lambda model: ScriptedGraphs(model))
    with nextn.load(artifact) as engine:
        prompts = [[1, 2, 3 + i] for i in range(5)]
        completions = engine.generate(prompts, max_new_tokens=6, ignore_eos=True)
        assert [list(completion.token_ids) for completion in completions] == 5 * [6 * [TOKEN]]
        records = strict.take()
        weights = sum(weight.nbytes for weight in engine.model.manifest.weights.tensors)
        assert not illegal(records)
        with engine.model.session():
            assert host_to_device(records) - host_to_device(strict.take()) >= weights > 500_000


Extra = Callable[[], object]


def inject(monkeypatch: pytest.MonkeyPatch, extra: Extra) -> None:
    """Into every program that is captured from now on."""
    over = Program.over
    monkeypatch.setattr(Program, "over", lambda self, tensors: injected(over(self, tensors), extra))


@pytest.mark.parametrize("wait", ["item", "cpu"])
def test_a_host_wait_inside_is_refused(
    monkeypatch: pytest.MonkeyPatch, strict: FakeCann, model: Model, wait: str
) -> None:
    on_device = torch.ones(2, device="npu")
    inject(monkeypatch, lambda: getattr(on_device.sum(), wait)())
    with pytest.raises(ExecutionError, match=r"graph prefill\.b1 cannot be captured .*107030"):
        model.session(speculation=False)


def test_a_host_value_inside_is_seen(monkeypatch: pytest.MonkeyPatch, cann: FakeCann, model: Model) -> None:
    """It would be baked into every replay."""
    on_host, on_device = torch.ones(2), torch.ones(2, device="npu")
    inject(monkeypatch, lambda: on_device.copy_(on_host, non_blocking=True))
    cann.clear()
    with model.session(speculation=False):
        assert len(illegal(cann.take())) >= 2  # in both graphs


def test_more_memory_inside_is_seen(monkeypatch: pytest.MonkeyPatch, strict: FakeCann, model: Model) -> None:
    with model.session(speculation=False):
        usual = allocated_inside(strict.take())
    kept: list[torch.Tensor] = []
    nbytes = 64 * 2**20
    inject(monkeypatch, lambda: kept.append(torch.empty(nbytes, dtype=torch.uint8, device="npu")))
    with model.session(speculation=False):
        assert allocated_inside(strict.take()) >= usual + 2 * nbytes
