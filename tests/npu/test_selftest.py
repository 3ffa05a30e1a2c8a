"""`nextn-run ART --selftest --device npu` on the fake, whose results are no results: it says where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nextn.runtime.cli import main
from nextn.runtime.contract.errors import ExitCode
from nextn.runtime.executors import captured_graphs
from tests.conftest import CompiledArtifacts
from tests.fakes.cann.log import FakeCann
from tests.npu.scripted_device import TOKEN, ScriptedGraphs


@pytest.fixture(scope="module")
def artifact(compiled_artifact: CompiledArtifacts) -> Path:
    return compiled_artifact("exported")


def selftest(artifact: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main([str(artifact), "--selftest", "--device", "npu", *options])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out


def test_a_device_that_computes_nothing(
    cann: FakeCann, artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = selftest(artifact, capsys)
    assert code == ExitCode.ARTIFACT
    lines = out.splitlines()
    assert lines[0].startswith("FAIL  run 0 (decode) runs: graph wrote an impossible result")
    assert not [line for line in lines if line.startswith("PASS")]
    assert lines[-1] == "FAIL: 9 of 9 checks"  # two plain runs, two speculative twice, three together
    block = lines[lines.index("----- report to send back -----") : -1]
    assert block[-1] == "----- end of report -----"
    for start in (
        "torch_npu: 2.13.0",
        "SoC: Ascend910_9391",
        "devices: 1",
        "target: npu pt2 float32",
        "CANN: ",
    ):
        assert [line for line in block if line.startswith(start)], start
    assert [line for line in block if line.startswith("graph prefill.b1: launches ")]


@pytest.mark.full
def test_wrong_tokens_are_named(
    cann: FakeCann,
    artifact: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device whose results are possible and wrong."""
    monkeypatch.setattr(captured_graphs, "make", lambda model: ScriptedGraphs(model))
    code, out = selftest(artifact, capsys, "--json")
    assert code == ExitCode.ARTIFACT
    report = json.loads(out)["selftest"]
    [first, *_] = report["checks"]
    assert first["name"] == "run 0 (decode) tokens" and f"found {TOKEN}" in first["detail"]
    assert not report["passed"]
    assert set(report["times"]["rounds"]) >= {"decode", "round", "phases"}
    assert report["times"]["graphs"]["round.b2"]["launches"] > 2
    assert report["environment"]["SoC"] == "Ascend910_9391"
