"""What nextn-compile says on stderr while it works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from nextn.compile.cli import PROGRAM


class Progress:
    """Plain lines; on a terminal also a spinner that shows what is being waited for."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)

    def line(self, text: str) -> None:
        """One finished step."""
        self._console.print(text, markup=False)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Shows `text` while the block runs; silent unless stderr is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(text):
            yield


def warn(text: str) -> None:
    """One line about something the user should know but that stops nothing."""
    print(f"{PROGRAM}: warning: {text}", file=sys.stderr)
