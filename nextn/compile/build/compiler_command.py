"""The C++ compiler that CXX names: a program, or a command of several words, as make and CMake take it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nextn.compile.build.safe_paths import is_safe
from nextn.runtime.contract.errors import ExecutionError

_DEFAULT = "g++"
"""What torch's own lowering looks up."""


@dataclass(frozen=True)
class CompilerCommand:
    """`words` start with a program; `version` is what it says of itself."""

    words: tuple[str, ...]
    version: str

    @property
    def description(self) -> str:
        """Tells compilers apart whose code may differ: the first line of the version, and several words."""
        line = self.version.splitlines()[0].strip()
        return line if len(self.words) == 1 else f"{line}, called as {shlex.join(self.words)}"

    @property
    def is_program(self) -> bool:
        """Whether torch's lowering, which takes CXX for the name of a program, can take this one."""
        return len(self.words) == 1 and is_safe(self.words[0])

    def write_program(self, folder: Path) -> Path:
        """A program in `folder` that calls the command; its name tells whether it is gcc or clang."""
        program, *more = self.words
        command = shlex.join([os.path.abspath(shutil.which(program) or program), *more])
        file = folder / self._family()
        file.write_bytes(os.fsencode(f'#!/bin/sh\nexec {command} "$@"\n'))
        file.chmod(0o700)
        return file

    def _family(self) -> str:
        version = self.version.lower()
        if "clang" in version:
            return "clang++"
        return "g++" if "free software foundation" in version else "c++"


def find_compiler() -> CompilerCommand:
    """What CXX names, g++ without it. Raises ExecutionError if it names none, or one that does not run."""
    words = _words(os.environ.get("CXX", ""))
    path = shutil.which(words[0])
    if path is None:
        raise ExecutionError(
            "no C++ compiler; install g++ or set CXX", expected=words[0], found="nothing on PATH"
        )
    command = [path, *words[1:], "--version"]
    run = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if run.returncode != 0 or not run.stdout.strip():
        raise ExecutionError(
            "the C++ compiler does not run",
            file=shlex.join([path, *words[1:]]),
            found=f"exit {run.returncode}",
        )
    return CompilerCommand(words, run.stdout.strip())


def _words(command: str) -> tuple[str, ...]:
    """As a shell splits them; but the path of a file that is there is one word, whatever is in it."""
    if "/" in command and os.path.isfile(command):
        return (command,)
    try:
        return tuple(shlex.split(command)) or (_DEFAULT,)
    except ValueError as error:
        raise ExecutionError(
            "CXX is not a command", expected="words as a shell reads them", found=f"{command}: {error}"
        ) from error
