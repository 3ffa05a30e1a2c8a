"""`benchmarks/captured_rounds.py` as a command: figures, or one line and an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nextn.runtime.contract.errors import ExitCode
from tests.conftest import CompiledArtifacts

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "captured_rounds.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True)


def test_a_fault_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path / "none")
    assert (done.returncode, done.stdout) == (ExitCode.ARTIFACT, "")
    assert done.stderr.startswith("captured_rounds.py: error: ") and done.stderr.count("\n") == 1


@pytest.mark.full
def test_launches_of_a_round(compiled_artifact: CompiledArtifacts) -> None:
    """k = 2: verify, accept, extend and a step, or all in one; a device that the artifact is not for."""
    artifact = compiled_artifact("exported")
    done = run(artifact, "--device", "cpu", "--new-tokens", "12")
    assert done.returncode == ExitCode.OK, done.stderr
    found = json.loads(done.stdout)
    assert (found["round"]["launches_per_round"], found["phases"]["launches_per_round"]) == (1, 4)
    refused = run(artifact, "--device", "cuda")
    assert refused.returncode == ExitCode.USAGE and refused.stderr.count("\n") == 1
