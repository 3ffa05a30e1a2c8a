"""Sessions of ONNX artifacts: ONNX Runtime computes, the loop around it is the native one."""

from __future__ import annotations

import builtins
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from nextn.graphs.state import state_table
from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session, SessionResult
from nextn.runtime.cli import main as nextn_run
from nextn.runtime.contract.errors import ArtifactError, ExecutionError, ExitCode
from nextn.runtime.executors import past_and_present
from nextn.runtime.executors.onnxruntime_graphs import OnnxRuntimeGraphs, make
from nextn.runtime.executors.past_and_present import BoundGraph, Buffer
from tests.integration.conftest import Ask, asks, eager_session, run_in
from tests.integration.sessions import submit
from tests.onnx_artifact import small_checkpoint, write_artifact
from tests.onnx_sessions import Exported

STATE_TOLERANCE = 2e-5
"""Measured: 5e-6."""


@pytest.fixture(scope="module")
def model(exported: Exported) -> Iterator[Model]:
    with Model(exported.artifact) as model:
        yield model


def some_asks(vocab_size: int) -> list[Ask]:
    """More than slots, of one to several chunks, greedy and sampled, some that EOS may end."""
    greedy = asks(vocab_size, 3, longest=45, new_tokens=14, temperature=0.0)
    sampled = asks(vocab_size, 3, longest=45, new_tokens=9, temperature=0.9, first=3)
    return [*greedy, *(replace(one, ignore_eos=False) for one in sampled)]


def run(session: Session, requests: Sequence[Ask]) -> list[SessionResult]:
    ids = submit(session, requests)
    assert session.run()
    return [session.result(one) for one in ids]


def outcomes(results: Sequence[Any]) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
    return [(tuple(one.tokens), tuple(one.accept_lens), one.finish_reason) for one in results]


def assert_equals_eager(exported: Exported, session: Session, requests: Sequence[Ask]) -> None:
    eager = eager_session(exported.artifact)
    assert outcomes(run(session, requests)) == outcomes(run_in(eager, requests))
    for spec in state_table(exported.shape):
        buffer = eager.state.get_buffer(spec.name)
        found = torch.frombuffer(bytearray(session.state(spec.name)), dtype=buffer.dtype).view(buffer.shape)
        difference = float((found.double() - buffer.double()).abs().max())
        assert difference <= STATE_TOLERANCE, spec.name


def test_tokens_and_state_are_those_of_the_eager_driver(exported: Exported, model: Model) -> None:
    with model.session() as session:
        assert_equals_eager(exported, session, some_asks(exported.shape.config.vocab_size))


def test_a_place_that_was_left_is_never_read(
    exported: Exported, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other place of every buffer that takes turns holds nothing but poison before each launch."""
    poisoned = 0
    launch = BoundGraph.launch

    def poisons(graph: BoundGraph) -> None:
        nonlocal poisoned
        for buffer in (buffer for _, buffer in graph._tensors if len(buffer.places) == 2):
            other = buffer.places[1 - buffer.side]
            other[:] = b"\xff" * other.nbytes  # NaN
            poisoned += 1
        launch(graph)

    monkeypatch.setattr(BoundGraph, "launch", poisons)
    with model.session() as session:
        assert_equals_eager(exported, session, some_asks(exported.shape.config.vocab_size))
    assert poisoned > 50


def test_what_the_host_writes_and_reads_finds_the_place() -> None:
    memory = bytearray(range(8))
    buffer = Buffer(memoryview(memory))
    buffer.take_turns()
    buffer.take_turns()
    assert len(buffer.places) == 2
    buffer.places[1][:] = bytes(range(10, 18))
    buffer.side = 1
    memory[2:4] = b"ab"
    buffer.host_wrote(2, 4)
    assert bytes(buffer.places[1]) == bytes([10, 11]) + b"ab" + bytes(range(14, 18))
    buffer.bring_home()
    assert memory == bytes(buffer.places[1])
    buffer.side = 0
    buffer.host_wrote(0, 8)
    buffer.bring_home()
    assert memory[:2] == bytes([10, 11])


def test_a_steady_round_makes_no_new_bindings(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, as the rings change sides; and no weight is bound, nor copied for it."""
    bound: list[str] = []
    described = past_and_present._described

    def records(spec: Any, memory: memoryview) -> Any:
        bound.append(spec.kind)
        return described(spec, memory)

    monkeypatch.setattr(past_and_present, "_described", records)
    with model.session() as session:
        session.submit((1, 2, 3), max_new_tokens=60)
        for _ in range(4):
            assert session.turn()
        assert set(bound) == {"state", "input"}
        bound.clear()
        while session.turn():
            pass
        assert bound == []


def test_the_command(exported: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [str(exported.artifact), "--token-ids", "3,1,4,1,5", "--max-new-tokens", "12", "--json"]
    found = []
    for executor in ([], ["--executor", "onnxruntime"]):
        assert nextn_run([*asked, *executor]) == ExitCode.OK
        found.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    expected = outcomes(
        run_in(eager_session(exported.artifact), [Ask((3, 1, 4, 1, 5), 12, ignore_eos=False)])
    )
    for first, summary in found:
        assert (tuple(first["token_ids"]), tuple(first["accept_lens"]), first["finish_reason"]) == expected[0]
        assert summary["summary"]["num_graph_launches"] >= 3
    assert nextn_run([*asked, "--executor", "native"]) == ExitCode.USAGE
    assert "expected onnxruntime, found native" in capsys.readouterr().err.replace('"', "")


def test_without_onnxruntime(
    exported: Exported, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_module = builtins.__import__

    def absent(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "onnxruntime":
            raise ImportError(f"No module named '{name}'")
        return import_module(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert nextn_run([str(exported.artifact), "--token-ids", "1"]) == ExitCode.RUNTIME
    error = capsys.readouterr().err
    assert "pip install 'nextn[onnx]'" in error and error.count("\n") == 1


def copied(exported: Exported, folder: Path) -> Path:
    return Path(shutil.copytree(exported.artifact, folder / "copy"))


def test_a_damaged_or_replaced_graph(exported: Exported, tmp_path: Path) -> None:
    """Refused by its hash, before ONNX Runtime sees it."""
    artifact = copied(exported, tmp_path)
    file = artifact / "graphs" / "round.b2.onnx"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match="round.b2.onnx"):
        Model(artifact)
    shutil.copyfile(artifact / "graphs" / "seed.b1.onnx", file)
    with pytest.raises(ArtifactError, match="round.b2.onnx"):
        Model(artifact)


def test_what_onnx_runtime_refuses_is_one_line(exported: Exported, tmp_path: Path) -> None:
    """With hashes that fit, as from a build of other versions."""
    artifact = copied(exported, tmp_path)
    with Model(artifact) as model:
        (artifact / "graphs" / "round.b2.onnx").write_bytes(b"no protobuf")
        executor = make(model)
        assert isinstance(executor, OnnxRuntimeGraphs)
        with pytest.raises(ExecutionError, match="ONNX Runtime: ") as caught:
            model.session(executor=executor)
    assert "round.b2.onnx" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("lost", ["input", "output"])
def test_another_interface_is_refused(exported: Exported, tmp_path: Path, lost: str) -> None:
    """With hashes that fit. Without its present, state would be lost and nothing said."""
    artifact = copied(exported, tmp_path)
    file = artifact / "graphs" / "round.b2.onnx"
    graph = onnx.load(file, load_external_data=False)
    if lost == "output":
        name = "present.window_0"
        kept = [one for one in graph.graph.output if one.name != name]
        del graph.graph.output[:]
        graph.graph.output.extend(kept)
    else:
        (ring,) = (one for one in graph.graph.input if one.name == "past.window_0")
        name = ring.name = "past.other"
        for node in graph.graph.node:
            node.input[:] = [name if source == "past.window_0" else source for source in node.input]
    with Model(artifact) as model:
        file.write_bytes(graph.SerializeToString())
        with pytest.raises(ArtifactError, match=f"other {lost}s than the manifest says") as caught:
            model.session(executor=make(model))
    assert "round.b2.onnx" in str(caught.value) and name in str(caught.value)


@pytest.mark.full
def test_bfloat16_exports_and_is_refused_by_name(tmp_path: Path) -> None:
    """ONNX Runtime multiplies no bfloat16 on a CPU; the files are sound, other executors may."""
    checkpoint, shape = small_checkpoint(tmp_path / "checkpoint")
    shape = replace(shape, dtype="bfloat16", num_steps=0)
    artifact = write_artifact(tmp_path / "artifact", checkpoint, shape, [("prefill", 1), ("decode", 2)])
    with Model(artifact) as model, pytest.raises(ExecutionError, match="ONNX Runtime: .*NOT_IMPLEMENTED"):
        model.session()
