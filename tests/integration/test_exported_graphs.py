"""An artifact of exported programs through the product's own path, on the host in the place of a device.

The executor keeps state and inputs in memory of its own there too, so that what is shown of its copies, and
of what it does to state while it loads graphs, holds for a device; only the capture is missing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import nextn
from nextn.graphs.eager_session import EagerRequest
from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session
from nextn.runtime.cli import main as nextn_run
from nextn.runtime.contract.blocks import Control
from nextn.runtime.contract.errors import ArtifactError, ExecutionError, UsageError
from nextn.runtime.executors.capture import requirements
from nextn.runtime.executors.capture.session_graphs import SessionGraphs
from tests.conftest import CompiledArtifacts
from tests.integration.conftest import Ask, asks, eager_session, run_native
from tests.integration.test_damage import rewrite_manifest


@pytest.fixture(scope="module")
def artifact(compiled_artifact: CompiledArtifacts) -> Path:
    """k = 2, batch size 2, one layer of each kind."""
    return compiled_artifact("exported")


@pytest.fixture(scope="module")
def model(artifact: Path) -> Iterator[Model]:
    with Model(artifact, device="cpu") as model:
        yield model


def requests_of(model: Model) -> list[Ask]:
    """Three for two slots, past a chunk and a C128 block, greedy and sampled."""
    greedy = asks(model.info.vocab_size, 2, longest=150, new_tokens=12, temperature=0.0, first=3)
    return [*greedy, *asks(model.info.vocab_size, 1, longest=150, new_tokens=20, temperature=0.8)]


def in_state(session: Session, model: Model, name: str) -> torch.Tensor:
    [spec] = [one for one in model.manifest.state if one.name == name]
    values = torch.frombuffer(bytearray(session.state(name)), dtype=getattr(torch, spec.dtype))
    return values.view(spec.shape(model.info.slots))


def test_no_graph_needs_operators_of_ours(artifact: Path) -> None:
    """An archive of stored text: what a program calls can be read in it."""
    files = list((artifact / "graphs").iterdir())
    assert files
    for file in files:
        text = file.read_bytes()
        assert b"torch.ops.aten.index_put_" in text and b"torch.ops.nextn" not in text, file


MODES = [
    pytest.param({}, id="rounds"),
    pytest.param({"speculation": False}, id="plain"),
    pytest.param({"phases": True}, id="phases", marks=pytest.mark.full),
]


@pytest.mark.parametrize("mode", MODES)
def test_sessions_equal_the_eager_modules(artifact: Path, model: Model, mode: dict[str, bool]) -> None:
    """Tokens, accept lengths and finish reasons, and every state buffer bit for bit."""
    eager = eager_session(artifact, **mode)
    wanted = [
        EagerRequest(ask.prompt, ask.max_new_tokens, seed=ask.seed, temperature=ask.temperature)
        for ask in requests_of(model)
    ]
    eager.generate(wanted)
    with model.session(**mode) as session:
        ids = [
            session.submit(
                ask.prompt,
                max_new_tokens=ask.max_new_tokens,
                temperature=ask.temperature,
                seed=ask.seed,
                ignore_eos=True,
            )
            for ask in requests_of(model)
        ]
        assert session.run()
        for one, request in zip(ids, wanted, strict=True):
            result = session.result(one)
            assert (list(result.tokens), list(result.accept_lens)) == (request.tokens, request.accept_lens)
        for spec in model.manifest.state:
            assert torch.equal(in_state(session, model, spec.name), eager.state.get_buffer(spec.name)), spec


class Forgetful(SessionGraphs):
    """Leaves behind what loading did."""

    def _make_scratch_fresh(self) -> None:
        pass


@pytest.mark.parametrize("executor", [SessionGraphs, Forgetful])
def test_loading_leaves_state_as_it_was(model: Model, executor: type[SessionGraphs]) -> None:
    """Every graph has run by then; the twin shows that it would be seen."""
    changed = set()
    with model.session(executor=executor(model)) as session:
        for spec in model.manifest.state:
            fresh = torch.zeros(spec.shape(model.info.slots), dtype=getattr(torch, spec.dtype))
            if spec.name == "control":
                fresh[-1, Control.FINISHED.columns] = 1
                fresh[-1, Control.EOS.columns] = -1
            found = in_state(session, model, spec.name)
            assert torch.equal(found[: -spec.rows_per_slot], fresh[: -spec.rows_per_slot]), spec.name
            changed |= set() if torch.equal(found, fresh) else {spec.name}
    assert bool(changed) == (executor is Forgetful), changed


class Deaf(SessionGraphs):
    """Does not hear of the slots that a round serves."""

    def write(self, name: str, start: int, stop: int) -> None:
        if not name.startswith("slots_"):
            super().write(name, start, stop)


def test_what_the_host_writes_arrives_by_the_executor_alone(model: Model) -> None:
    [ask] = requests_of(model)[:1]
    with pytest.raises(ExecutionError, match="graph wrote an impossible result"):
        run_native(model, [ask, ask], executor=Deaf(model))


def test_absent_devices(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"not for this device \(expected npu or cpu, found cuda\)"):
        Model(artifact, device="cuda")
    monkeypatch.setattr(requirements, "_is_installed", lambda package: package == "torch")
    with Model(artifact) as model:
        with pytest.raises(ExecutionError, match="graphs for npu need torch_npu"):
            model.session()
        model.device = "cuda"  # as of an artifact for it
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ArtifactError, match=r"no cuda device here .* a driver and a GPU"):
            model.session()


def test_a_file_that_is_no_program_of_the_manifests_tensors(artifact: Path, tmp_path: Path) -> None:
    """Its hash is right, so that the file itself is what is found out."""
    for change in ("another graph", "no program"):
        copy = Path(shutil.copytree(artifact, tmp_path / change.replace(" ", "_")))
        target = copy / "graphs" / "prefill.b1.pt2"
        target.write_bytes((copy / "graphs" / "seed.b1.pt2").read_bytes() if change[0] == "a" else b"text")

        def reseal(content: dict, target: Path = target) -> None:
            [graph] = [one for one in content["graphs"] if one["name"] == "prefill"]
            data = target.read_bytes()
            graph |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

        rewrite_manifest(copy, reseal)
        with Model(copy, device="cpu") as model, pytest.raises(ArtifactError, match=r"prefill\.b1\.pt2"):
            model.session()


@pytest.fixture
def without_phases(artifact: Path, tmp_path: Path) -> Path:
    """As the plan of a chip that holds fewer graphs makes it."""
    copy = Path(shutil.copytree(artifact, tmp_path / "artifact"))

    def leave_out(content: dict) -> None:
        kept = ("prefill", "seed", "decode", "round")
        content["graphs"] = [graph for graph in content["graphs"] if graph["name"] in kept]
        content["target"]["soc"] = "Ascend910B1"

    rewrite_manifest(copy, leave_out)
    return copy


def test_info_shows_the_form_and_the_chip_if_one_was_named(
    artifact: Path, without_phases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, form in ((artifact, "pt2"), (without_phases, "pt2; Ascend910B1")):
        capsys.readouterr()
        assert nextn_run([str(folder), "--info"]) == 0
        [target] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("target ")]
        assert target.split(maxsplit=1)[1] == f"npu float32 ({form})"


def test_phases_that_were_left_out(without_phases: Path) -> None:
    with pytest.raises(UsageError, match=r"no separate phases: .* \(found Ascend910B1\)"):
        nextn.load(without_phases, device="cpu", phases=True)
    with Model(without_phases, device="cpu") as model, pytest.raises(UsageError, match="no separate phases"):
        model.session(phases=True)


@pytest.mark.full
def test_the_rest_of_such_an_artifact_runs(without_phases: Path, model: Model) -> None:
    [ask] = requests_of(model)[:1]
    with nextn.load(without_phases, device="cpu") as engine:
        [completion] = engine.generate([ask.prompt], max_new_tokens=ask.max_new_tokens, ignore_eos=True)
    [expected] = run_native(model, [ask])
    assert tuple(completion.token_ids) == expected.tokens


@pytest.mark.full
def test_a_selftest_passes_where_graphs_compute(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checklist of a person with a device, with the host as the device."""
    capsys.readouterr()
    assert nextn_run([str(artifact), "--selftest", "--device", "cpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["selftest"]
    assert report["passed"] and len(report["checks"]) == 25
    assert {buffer["largest"] for buffer in report["state"]} == {0.0}, "the very operators of the recording"
    assert report["environment"]["device"] == "cpu"
    assert len(report["times"]["graphs"]) == 8
