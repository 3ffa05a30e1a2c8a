"""The report of a self-test: what it says of checks, state, times and the machine."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

from nextn.runtime.bindings.executor import Executor
from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session
from nextn.runtime.contract.errors import ExecutionError, ExitCode
from nextn.runtime.selftest.ascend import UNKNOWN, ascend_facts
from nextn.runtime.selftest.command import run_selftest
from nextn.runtime.selftest.golden_state import compare_rows
from nextn.runtime.selftest.times import SelftestTimes
from tests.runtime.test_golden import change_state, golden  # noqa: F401


def report_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[ExitCode, dict]:
    with Model(folder) as model:
        code = run_selftest(model, as_json=True)
    return code, json.loads(capsys.readouterr().out)["selftest"]


def test_a_report_of_success(golden, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    code, report = report_of(golden(), capsys)
    assert code == ExitCode.OK and report["passed"]
    assert {"nextn", "artifact", "manifest", "target", "device", "host", "torch"} <= set(
        report["environment"]
    )
    assert "CANN" not in report["environment"], "of an Ascend machine alone"
    [ring] = report["state"]
    assert (ring["buffer"], ring["largest"], ring["first_bad_row"], ring["bad_rows"]) == ("ring", 0, None, 0)
    assert report["times"]["graphs"]["prefill.b1"]["launches"] > 0
    assert {"round", "phases", "decode", "round, 2 together"} <= set(report["times"]["rounds"])


def test_the_worst_of_a_buffer_is_reported(golden, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    code, report = report_of(golden(change_state), capsys)
    assert code == ExitCode.ARTIFACT and not report["passed"]
    [ring] = report["state"]
    assert ring["first_bad_row"] == 2 and ring["bad_rows"] == 1
    assert ring["largest"] == pytest.approx(1.0) and ring["share_of_allowed"] > 1
    [failed] = [check for check in report["checks"] if not check["passed"]]
    assert failed["name"] == "run 1 (round) state" and failed["detail"].startswith("ring row 2: sums")


def test_a_device_that_fails_is_a_failed_check(
    golden,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every replay is tried, each with a session of its own."""
    folder = golden()

    def fails(self: Session, *arguments: object) -> bool:
        raise ExecutionError("the device is gone")

    monkeypatch.setattr(Session, "turn", fails)
    code, report = report_of(folder, capsys)
    assert code == ExitCode.ARTIFACT
    broken = {check["name"]: check["detail"] for check in report["checks"] if not check["passed"]}
    assert broken["run 0 (round) runs"] == broken["run 3 (decode) runs"] == "the device is gone"
    assert [check["passed"] for check in report["checks"] if "together" in check["name"]].count(True) == 6


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_wrong(value: float) -> None:
    wanted = np.ones((3, 2))
    found = wanted.copy()
    found[1, 0] = value
    for recorded in (wanted, found):  # also where the recording has the same
        difference = compare_rows("x", recorded, found, 1.0, 1.0)
        assert (difference.first_bad_row, difference.bad_rows, difference.largest) == (1, 1, np.inf)


def test_differences_by_hand() -> None:
    wanted = np.array([[1.0, 10.0], [-2.0, 20.0], [0.0, 0.0]])
    found = wanted + np.array([[0.5, 0.0], [0.0, 4.0], [0.0, 0.0]])
    difference = compare_rows("x", wanted, found, rtol=0.1, atol=1.0)  # allowed: 2, 3, 1
    assert (difference.largest, difference.first_bad_row, difference.bad_rows) == (4.0, 1, 1)
    assert difference.share_of_allowed == pytest.approx(4 / 3)
    assert compare_rows("x", wanted, found, rtol=0.1, atol=2.0).share_of_allowed == 1.0


class Counting:
    """An executor that does nothing, and when it may."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str):  # noqa: ANN204
        return lambda *arguments: self.calls.append(name)


def test_times_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is read at launch, after it and after the wait: 1, 2 and 5 ms, then 9, 10 and 12 ms."""
    inner = Counting()
    ticks = iter([1e-3, 2e-3, 5e-3, 9e-3, 10e-3, 12e-3])
    monkeypatch.setattr("nextn.runtime.executors.make", lambda model: inner)
    monkeypatch.setattr("nextn.runtime.selftest.times.time.perf_counter", lambda: next(ticks))
    times = SelftestTimes()
    executor: Executor | None = times.executor(None)  # type: ignore[arg-type]
    assert executor is not None
    executor.launch("round.b1")
    executor.read("result")
    executor.launch("round.b1")
    executor.wait()
    executor.wait()  # of nothing
    assert times.to_dict()["graphs"] == {"round.b1": {"launches": 2, "launch_us": 1000.0, "run_us": 3500.0}}
    assert inner.calls == ["launch", "read", "launch", "wait", "wait"]


def test_graphs_that_libnextn_runs_have_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextn.runtime.executors.make", lambda model: None)
    times = SelftestTimes()
    assert times.executor(None) is None  # type: ignore[arg-type]
    assert times.to_dict()["graphs"] == {}


def test_facts_of_a_machine_without_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    facts = ascend_facts({})
    assert facts["CANN"] == facts["driver"] == facts["CANN folder"] == UNKNOWN
    assert facts["ACL"].startswith("libascendcl.so does not load")


@pytest.mark.parametrize(
    "text",
    ["Version=8.2.RC1\ntimestamp=20250101\n", "# version\nruntime_running_version=[7.7.0:8.2.RC1]\n"],
)
def test_version_files_of_a_toolkit(tmp_path: Path, text: str) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "version.info").write_text(text)
    facts = ascend_facts({"ASCEND_TOOLKIT_HOME": str(tmp_path)})
    assert facts["CANN folder"] == str(tmp_path)
    assert facts["CANN"] == text.split("=")[1].split("\n")[0].strip("[]")
