"""A checkpoint that compiles fast, and the command with a stand-in for the compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.compile.stand_in_compile import main
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

STAND_IN = Path(__file__).with_name("stand_in_compile.py")

SMALL = ("--max-seq-len", "12", "--prefill-chunk", "4")
"""Options under which golden runs take a second."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest architecture: sliding windows only."""
    config = CASES["window_only"].config
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), config, random_weights(config, seed=3))


@pytest.fixture
def start_compile(checkpoint: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `nextn-compile` with the stand-in; keywords steer the stand-in (see stand_in_worker.py)."""

    def start(output: Path, *options: str, **behaviour: object) -> subprocess.Popen[str]:
        arguments = [str(checkpoint), "-o", str(output), *SMALL, *options]
        return subprocess.Popen(
            [sys.executable, str(STAND_IN), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NEXTN_STAND_IN": json.dumps(behaviour)},
        )

    return start


@dataclass(frozen=True)
class Outcome:
    """Exit code and captured streams of one command."""

    code: int
    out: str
    err: str


@pytest.fixture
def compile_to(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Runs the same to the end, in this process."""

    def run(output: Path, *options: str, source: Path | None = None, **behaviour: object) -> Outcome:
        monkeypatch.setenv("NEXTN_STAND_IN", json.dumps(behaviour))
        capsys.readouterr()
        code = main([str(source or checkpoint), "-o", str(output), *SMALL, *options])
        return Outcome(code, *capsys.readouterr())

    return run
