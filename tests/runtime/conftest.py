"""The fake libnextn and artifacts for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nextn.runtime.bindings.library import LIBRARY_VARIABLE, load_library
from nextn.runtime.cli import main
from nextn.runtime.contract.version import VERSION
from tests.runtime.artifacts import write_artifact

REPOSITORY = Path(__file__).parents[2]
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


@pytest.fixture(scope="session")
def fake_path(compile_c: Callable[..., Path]) -> Path:
    source = Path(__file__).with_name("fake_nextn.c")
    return compile_c(source, "-fPIC", "-shared", f'-DFAKE_VERSION="{VERSION}"')


@pytest.fixture
def fake_library(fake_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The fake in place of libnextn for one test."""
    monkeypatch.setenv(LIBRARY_VARIABLE, str(fake_path))
    load_library.cache_clear()
    yield fake_path
    load_library.cache_clear()


@pytest.fixture
def artifact(fake_library: Path, tmp_path: Path) -> Callable[..., Path]:
    """`artifact(**shape)` -> folder of an artifact for the fake."""
    return lambda **shape: write_artifact(tmp_path / "artifact", **shape)


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
def nextn_process(fake_library: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts the command in a process of its own, with pipes unless told otherwise."""

    def start(arguments: Sequence[object], **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "nextn.runtime.cli", *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, **{**streams, **options})

    return start
