"""Python files in the folder that a command is called from are the user's: none of them may be run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nextn.compile.build.pool import WORKER_COMMAND
from nextn.compile.targets.target import CHECK_COMPILER
from nextn.runtime.contract.errors import ExitCode

NAMES = ("queue", "json", "torch", "nextn", "sitecustomize", "usercustomize")
"""A checkpoint's or a user's own modules, under names that a program of ours imports."""


@pytest.fixture
def working_folder(tmp_path: Path) -> Path:
    """A folder whose modules leave a file of their name when they are run."""
    folder = tmp_path / "working"
    folder.mkdir()
    for name in NAMES:
        marker = tmp_path / f"{name} was run"
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    return folder


def were_run(working_folder: Path) -> list[str]:
    return sorted(path.name for path in working_folder.parent.glob("* was run"))


def test_a_compile_worker_runs_none(working_folder: Path) -> None:
    """https://github.com/comfyanonymous/ComfyUI/issues/4196: a file named like a module of Python is run."""
    command = [*WORKER_COMMAND, f"{CHECK_COMPILER}air", str(os.getpid())]
    done = subprocess.run(command, cwd=working_folder, capture_output=True, text=True)
    assert were_run(working_folder) == []
    assert done.returncode in (ExitCode.OK, ExitCode.RUNTIME), done.stderr


@pytest.mark.parametrize("command", ["nextn-compile demo --dry-run", "nextn-run --help"])
def test_a_console_script_runs_none(working_folder: Path, command: str) -> None:
    script, *arguments = command.split()
    program = [str(Path(sys.executable).with_name(script)), *arguments]
    done = subprocess.run(program, cwd=working_folder, capture_output=True, text=True)
    assert were_run(working_folder) == []
    assert done.returncode == ExitCode.OK, done.stderr
