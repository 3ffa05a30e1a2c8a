"""CXX as other build tools take it: a program, a path with spaces, a launcher with a compiler and flags."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nextn.compile.build.inputs import detect_toolchain
from nextn.compile.targets.aoti.target import AotiTarget
from nextn.runtime.contract.errors import ExecutionError
from tests.compile.test_unusual_paths import compiled

GXX = str(shutil.which("g++"))

VERSION = subprocess.run([GXX, "--version"], capture_output=True, text=True).stdout.splitlines()[0]

CALLED_WITH = '#!/bin/sh\necho "$@" >> {record}\nexec "$@"\n'
"""A launcher, as ccache is one: it runs what it is given, and remembers that it did."""

AVX2 = AotiTarget("cpu", isa="avx2")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH, with a space in its name; `cache g++` calls g++."""
    folder = tmp_path / "my tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    program(folder / "cache", CALLED_WITH.format(record=tmp_path / "record"))
    return folder


def program(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_a_launcher_with_flags_compiles(
    tools: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://github.com/rust-lang/cc-rs/issues/74: "ccache g++" was said to be missing."""
    monkeypatch.setenv("CXX", "cache g++ -DNAME='of mine' -std=gnu++20")
    manifest = compiled(tmp_path, checkpoint, "artifact")
    assert manifest.producer.compiler == f"{VERSION}, called as cache g++ '-DNAME=of mine' -std=gnu++20"
    calls = (tmp_path / "record").read_text().splitlines()
    assert all(call.startswith("g++ -DNAME=of mine -std=gnu++20") for call in calls)
    # Two sources, the constants, which are assembled, and the library of them.
    endings = (".wrapper.cpp", ".kernel.cpp", ".S", ".wrapper.so")
    assert [sum(f"{ending} " in f"{call} " for call in calls) for ending in endings] == [1, 1, 1, 1]


@pytest.mark.full
@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_path_with_spaces_compiles(
    tools: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_absolute: bool
) -> None:
    (tools / "my g++").symlink_to(GXX)
    command = tools / "my g++"
    monkeypatch.setenv("CXX", str(command if is_absolute else command.relative_to(tmp_path)))
    assert compiled(tmp_path, checkpoint, "artifact").producer.compiler.startswith("my g++ ")


def test_a_command_of_several_words_is_found(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "cache g++")
    assert detect_toolchain(AVX2).tools.compiler == f"{VERSION}, called as cache g++"


@pytest.mark.parametrize("command", [None, "g++", GXX])
def test_a_program_is_recorded_by_its_version_alone(
    monkeypatch: pytest.MonkeyPatch, command: str | None
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    if command is not None:
        monkeypatch.setenv("CXX", command)
    assert detect_toolchain(AVX2).tools.compiler == VERSION


@pytest.mark.parametrize(
    ("command", "words"),
    [
        pytest.param("missing-g++", ["no C++ compiler", "expected missing-g++"], id="one word"),
        pytest.param(
            "missing-cache g++",
            ["no C++ compiler", "expected missing-cache,"],
            id="launcher",
        ),
        pytest.param(
            "g++ 'of",
            ["CXX is not a command", "No closing quotation"],
            id="quote",
        ),
    ],
)
def test_what_is_no_compiler_is_named(
    monkeypatch: pytest.MonkeyPatch, command: str, words: list[str]
) -> None:
    monkeypatch.setenv("CXX", command)
    with pytest.raises(ExecutionError) as refused:
        detect_toolchain(AVX2)
    assert all(word in str(refused.value) for word in words), refused.value
