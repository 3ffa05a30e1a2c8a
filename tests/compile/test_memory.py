"""Compiling takes no model into memory: weights are a mapped file, or zeros nobody writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("step", ["worker", pytest.param("golden", marks=pytest.mark.full)])
def test_a_step_holds_no_weights(tmp_path: Path, step: str) -> None:
    """`torch.zeros` writes what it allocates, so a model built of it would be there once per process."""
    command = [sys.executable, "-m", "tests.compile.memory_probe", step, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["model_bytes"] > 2**30
    assert found["taken_bytes"] < 2**28
