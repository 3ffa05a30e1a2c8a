"""Sessions whose graphs an executor runs, here as eager modules: the loop around them is the native one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import nextn
from nextn.graphs.session_shape import SessionShape
from nextn.runtime import executors
from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session
from nextn.runtime.cli import main as nextn_run
from nextn.runtime.contract.errors import ArtifactError, ExecutionError, ExitCode, UsageError
from nextn.weights import Checkpoint
from tests.artifact_builder import write_uncompiled
from tests.integration.conftest import Ask, eager_session, run_in
from tests.integration.eager_executor import EagerExecutor
from tests.integration.sessions import MODES, some_asks, state_of, submit, tiny_checkpoint, two_slot_shape

LOADED = {
    "round": ["prefill.b1", "seed.b1", "round.b1", "round.b2"],
    "phases": ["prefill.b1", "seed.b1"]
    + [f"{name}.b{batch}" for batch in (1, 2) for name in ("verify", "accept", "draft_extend", "draft_step")],
    "plain": ["prefill.b1", "decode.b1", "decode.b2"],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return tiny_checkpoint(tmp_path_factory.mktemp("executors") / "tiny")


@pytest.fixture(scope="module")
def shape(checkpoint: Checkpoint) -> SessionShape:
    return two_slot_shape(checkpoint)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint, shape: SessionShape) -> Path:
    return write_uncompiled(tmp_path_factory.mktemp("uncompiled") / "artifact", checkpoint, shape)


@pytest.fixture
def model(artifact: Path) -> Iterator[Model]:
    with Model(artifact) as model:
        yield model


@pytest.mark.parametrize("apart", [False, True], ids=["shared memory", "own memory"])
@pytest.mark.parametrize("mode", MODES)
def test_tokens_and_state_are_those_of_the_eager_driver(
    model: Model, artifact: Path, shape: SessionShape, mode: str, apart: bool
) -> None:
    """With a memory of its own the executor computes from nothing but what the session told it."""
    requests = some_asks(shape.config.vocab_size)
    executor = EagerExecutor(artifact, model.manifest, apart=apart)
    with model.session(executor=executor, **MODES[mode]) as session:
        assert any(session.state("control")), "the scratch slot's row, which looking must not undo"
        ids = submit(session, requests)
        assert session.run()
        results = [session.result(one) for one in ids]
        found = state_of(session, shape)
    eager = eager_session(artifact, **MODES[mode])
    expected = [
        (tuple(one.tokens), tuple(one.accept_lens), one.finish_reason) for one in run_in(eager, requests)
    ]
    assert [(one.tokens, one.accept_lens, one.finish_reason) for one in results] == expected
    for name, tensor in found.items():
        assert torch.equal(tensor, eager.state.get_buffer(name)), name
    assert [call[1] for call in executor.calls if call[0] == "load"] == LOADED[mode]
    assert executor.calls[0] == ("attach",) and executor.calls[-1] == ("close",)
    assert executor.calls.count(("close",)) == 1


def test_a_steady_round_is_a_launch_and_a_read(model: Model, artifact: Path) -> None:
    """Inputs are written when they change and only then: the second request changes the slots."""
    executor = EagerExecutor(artifact, model.manifest)
    with model.session(executor=executor) as session:
        submit(session, [Ask((1, 2, 3), 30)])
        for _ in range(2):
            assert session.turn()
        executor.calls.clear()
        assert session.turn()
        assert executor.calls == [("launch", "round.b1"), ("read", "result")]
        submit(session, [Ask(tuple(range(20)), 30)])
        executor.calls.clear()
        for _ in range(3):
            assert session.turn()
        calls = list(executor.calls)
    prefill = ["control", "prompt_tokens", "prompt_slot", "prompt_count"]
    one_row = [("launch", "round.b1"), ("read", "result")]
    assert calls == [
        *(("write", name) for name in prefill),
        ("launch", "prefill.b1"),
        ("wait",),
        *one_row,
        ("write", "prompt_tokens"),
        ("write", "prompt_count"),
        ("launch", "prefill.b1"),
        ("read", "result"),
        ("launch", "seed.b1"),
        ("wait",),
        ("write", "slots_b2"),
        ("launch", "round.b2"),
        ("read", "result"),
        ("launch", "round.b2"),
        ("read", "result"),
    ]


@pytest.mark.parametrize("call", [("attach",), ("load", "round.b2")])
def test_an_exception_while_a_session_is_made(model: Model, artifact: Path, call: tuple[str, ...]) -> None:
    executor = EagerExecutor(artifact, model.manifest)
    executor.faults[call] = fault = ZeroDivisionError("of the test")
    with pytest.raises(ZeroDivisionError) as caught:
        model.session(executor=executor)
    assert caught.value is fault
    assert executor.calls[-2:] == [call, ("close",)]


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "call", [("write", "control"), ("launch", "prefill.b1"), ("launch", "round.b1"), ("wait",), ("read",)]
)
def test_an_exception_during_a_run(
    model: Model, artifact: Path, call: tuple[str, ...], kind: type[BaseException]
) -> None:
    """It comes out of the run it ended; the session's state is lost, its results are not."""
    executor = EagerExecutor(artifact, model.manifest)
    executor.faults[call] = fault = kind("of the test")
    with model.session(executor=executor) as session:
        [request] = submit(session, [Ask(tuple(range(20)), 8)])
        with pytest.raises(kind) as caught:
            session.run()
        assert caught.value is fault
        executor.faults.clear()
        with pytest.raises(ExecutionError, match="the executor could not"):
            session.run()
        assert session.result(request).finish_reason == "abort"
    assert executor.calls[-1] == ("close",)


def test_an_exception_when_state_is_looked_at(model: Model, artifact: Path) -> None:
    executor = EagerExecutor(artifact, model.manifest)
    with model.session(executor=executor) as session:
        assert len(session.state("control")) > 0
        executor.faults["read", "control"] = ZeroDivisionError("of the test")
        with pytest.raises(ZeroDivisionError):
            session.state("control")
        with pytest.raises(UsageError, match="no such state buffer"):
            session.state("slots_b1")
        submit(session, [Ask((1,), 4)])
        with pytest.raises(ExecutionError, match="could not read a state buffer"):
            session.run()


class Meddler(EagerExecutor):
    """Uses its own session from inside a launch."""

    session: Session | None = None

    def launch(self, graph: str) -> None:
        super().launch(graph)
        if self.session is not None:
            self.session.turn()


def test_an_executor_cannot_run_its_own_session(model: Model, artifact: Path) -> None:
    executor = Meddler(artifact, model.manifest)
    with model.session(executor=executor) as session:
        executor.session = session
        submit(session, [Ask((1, 2), 4)])
        with pytest.raises(UsageError, match="running already"):
            session.run()


def test_two_sessions_at_once(model: Model, artifact: Path, shape: SessionShape) -> None:
    """Each calls its own executor, also when they run on two threads."""
    requests = some_asks(shape.config.vocab_size)
    tokens: dict[int, list[tuple[int, ...]]] = {}

    def work(number: int) -> None:
        executor = EagerExecutor(artifact, model.manifest, apart=number == 1)
        with model.session(executor=executor) as session:
            ids = submit(session, requests)
            session.run()
            tokens[number] = [session.result(one).tokens for one in ids]

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tokens[0] == tokens[1] == [tuple(one.tokens) for one in run_in(eager_session(artifact), requests)]


def test_closing_the_model_closes_the_executor(artifact: Path) -> None:
    with Model(artifact) as model:
        executor = EagerExecutor(artifact, model.manifest)
        model.session(executor=executor)
    assert executor.calls[-1] == ("close",)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The eager executor in place of the one for ONNX."""
    entry = ("eager", "tests.integration.eager_executor")
    monkeypatch.setattr(executors, "_EXECUTORS", {"onnx": entry})


@pytest.mark.usefixtures("registered")
def test_an_engine_makes_the_executor_of_the_form(artifact: Path, shape: SessionShape) -> None:
    ask = Ask(tuple(range(20)), 10)
    [expected] = run_in(eager_session(artifact), [ask])
    with nextn.load(artifact, executor="eager") as engine:
        [completion] = engine.generate([list(ask.prompt)], max_new_tokens=10, ignore_eos=True)
    assert list(completion.token_ids) == expected.tokens
    with pytest.raises(UsageError) as caught:
        nextn.load(artifact, executor="native")
    assert (caught.value.expected, caught.value.found) == ("eager", "native")


@pytest.mark.usefixtures("registered")
def test_the_command_runs_it(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--token-ids", "1,2,3", "--max-new-tokens", "6", "--ignore-eos", "--json"]
    [expected] = run_in(eager_session(artifact), [Ask((1, 2, 3), 6)])
    assert nextn_run([str(artifact), *arguments]) == ExitCode.OK
    completion: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[0])
    assert completion["token_ids"] == expected.tokens
    assert nextn_run([str(artifact), *arguments, "--executor", "native"]) == ExitCode.USAGE
    assert "expected eager, found native" in capsys.readouterr().err


def test_graph_files_are_hashed_as_ever(tmp_path: Path, checkpoint: Checkpoint, shape: SessionShape) -> None:
    damaged = write_uncompiled(tmp_path / "artifact", checkpoint, shape)
    (damaged / "graphs/round.b1.onnx").write_bytes(b"round.b9")
    with pytest.raises(ArtifactError, match=r"round\.b1\.onnx"):
        Model(damaged)
