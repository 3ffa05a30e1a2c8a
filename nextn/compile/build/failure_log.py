"""The line of a failed worker's log that says why, and where the log is kept."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

_MOST_CHARS = 400

_COMPILER_ERROR = re.compile(r"(\S.*: )?(fatal )?error: .+")
"""Of gcc and clang, of their drivers, and of the linker they call."""

_LINKER_FAULT = re.compile(r"(\S*/)?(\S+-)?ld(\.\w+)?: (?!warning).+|.*: undefined reference to .+")
_LINKER_SUMMARY = re.compile(r"collect2: |\S*clang\S*: error: linker command failed")
"""What follows the linker's own lines, and says only that there are some."""

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile("During handling of the above exception|The above exception was the direct cause")


def cause(log: str, *, killed: bool) -> str | None:
    """The first error of a compiler, else the exception that the last traceback began with, else None.

    Args:
        killed: a signal ended the worker, which no exception did.
    """
    lines = log.splitlines()
    found = _of_compiler(lines) or (None if killed else _of_traceback(lines))
    return None if found is None else found.strip()[:_MOST_CHARS]


def last_line(log: str) -> str:
    """For a log that names no cause."""
    return (log.strip().splitlines() or ["(empty)"])[-1][-_MOST_CHARS:]


def kept(log: Path, folder: Path, key: str) -> Path:
    """Moves the log of graph `key` to `folder`, where it outlives the compile; returns where it is."""
    file = folder / f"{key}.log"
    try:
        folder.mkdir(exist_ok=True)
        shutil.move(log, file)
    except OSError:
        return log
    return file


def _of_compiler(lines: list[str]) -> str | None:
    for number, line in enumerate(lines):
        if _COMPILER_ERROR.fullmatch(line) is None:
            continue
        if _LINKER_SUMMARY.match(line):
            return next((other for other in lines[:number] if _LINKER_FAULT.fullmatch(other)), line)
        return line
    return None


def _of_traceback(lines: list[str]) -> str | None:
    starts = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    if not starts:
        return None
    first = starts.pop()
    while starts and any(_CHAINED.match(line) for line in lines[starts[-1] : first]):
        first = starts.pop()
    return next((line for line in lines[first + 1 :] if line and not line[0].isspace()), None)
