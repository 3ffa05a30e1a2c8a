"""Artifacts for an executor that echoes prompts, and `nextn-run` over them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nextn.runtime import executors
from nextn.runtime.cli import main
from tests.runtime.echo_artifact import write_echo_artifact
from tests.runtime.echo_executor import EchoExecutor

REPOSITORY = Path(__file__).parents[2]
NEXTN_RUN = (sys.executable, "-m", "tests.runtime.echo_executor")
"""For a process whose working directory is the repository."""

HEADERS = REPOSITORY / "nextn" / "runtime" / "native" / "include"


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles C sources against nextn.h: `compile_c(source, *flags)` -> path of the result."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the tests need a C compiler"

    def compile_source(source: Path, *flags: str) -> Path:
        output = tmp_path_factory.mktemp("c") / source.stem
        command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}", *flags]
        subprocess.run([*command, str(source), "-o", str(output)], check=True)
        return output

    return compile_source


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`artifact(**shape)` -> folder of an artifact, which the echo executor runs in this process."""
    monkeypatch.setattr(executors, "make", EchoExecutor)
    return lambda **shape: write_echo_artifact(tmp_path / "artifact", **shape)


class CommandResult:
    """Exit code and captured streams of one command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.split("\n") if line]


@pytest.fixture
def nextn_run(capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Runs the command in this process."""

    def run(*arguments: object) -> CommandResult:
        code = main([str(argument) for argument in arguments])
        return CommandResult(code, *capsys.readouterr())

    return run


@pytest.fixture
def nextn_process() -> Callable[..., subprocess.Popen[bytes]]:
    """Starts the command in a process of its own, with pipes unless told otherwise."""

    def start(arguments: Sequence[object], **options: Any) -> subprocess.Popen[bytes]:
        command = [*NEXTN_RUN, *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, **{"cwd": REPOSITORY, **streams, **options})

    return start
