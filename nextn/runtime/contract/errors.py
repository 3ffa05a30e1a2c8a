"""User-facing faults and the process exit codes they map to (README, "Use")."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of both command-line tools; the values are part of the public interface."""

    OK = 0
    USAGE = 2
    CHECKPOINT = 3
    ARTIFACT = 4
    RUNTIME = 5
    INTERRUPTED = 130


MAX_LINE = 4000
"""Characters of an error's line; what it quotes from a hostile input may be a megabyte long."""


def one_line(text: str) -> str:
    """`text` on one line; what a terminal would obey instead of show, such as an escape, is spelled out."""
    line = " ".join(text.split())[:MAX_LINE]
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


class NextnError(Exception):
    """A fault the user can act on; its text is one line and names file, key, expected, found."""

    exit_code: ExitCode = ExitCode.RUNTIME

    def __init__(
        self,
        message: str,
        *,
        file: object = None,
        key: str | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        self.message = message
        self.file = None if file is None else str(file)
        self.key = key
        self.expected = expected
        self.found = found
        super().__init__(self._one_line())

    def _one_line(self) -> str:
        details = [
            f"{label} {value}"
            for label, value in (
                ("file", self.file),
                ("key", self.key),
                ("expected", self.expected),
                ("found", self.found),
            )
            if value is not None
        ]
        text = self.message if not details else f"{self.message} ({', '.join(details)})"
        return one_line(text)


class UsageError(NextnError):
    """A flag or argument that cannot be honoured."""

    exit_code = ExitCode.USAGE


class RequestError(NextnError):
    """One request with bad values; other requests of the same run still complete."""

    exit_code = ExitCode.USAGE


class CheckpointError(NextnError):
    """A checkpoint or config that cannot be used."""

    exit_code = ExitCode.CHECKPOINT


class ArtifactError(NextnError):
    """An artifact that is damaged, incomplete or not built for this machine."""

    exit_code = ExitCode.ARTIFACT


class ExecutionError(NextnError):
    """A runtime, toolchain or disk failure."""

    exit_code = ExitCode.RUNTIME
