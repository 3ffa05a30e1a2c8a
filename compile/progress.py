"""What nextn-compile says on stderr while it works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.text import Text

from nextn.compile.cli import PROGRAM
from nextn.runtime.contract.tool import say

LINE_SECONDS = 10.0
"""How often a log is told about a long step."""


class Progress:
    """Plain lines; on a terminal also a spinner that shows what is being waited for."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)

    def line(self, text: str) -> None:
        """One finished step."""
        with suppress(OSError):  # the artifact counts, whoever reads this
            self._console.print(text, markup=False)

    @contextmanager
    def waiting(self, text: str) -> Iterator[Callable[[str], None]]:
        """Shows `text` while the block runs, and beside it what the block tells the function it is given.

        Where stderr is no terminal, the latter is a line every `LINE_SECONDS`.
        """
        if self._console.is_terminal:
            with self._console.status(text) as status:
                yield lambda detail: status.update(Text(f"{text}: {detail}"))
            return
        said = time.monotonic()

        def tell(detail: str) -> None:
            nonlocal said
            if time.monotonic() - said >= LINE_SECONDS:
                said = time.monotonic()
                self.line(f"{text}: {detail}")

        yield tell


def warn(text: str) -> None:
    """One line about something the user should know but that stops nothing."""
    say(f"{PROGRAM}: warning: {' '.join(text.split())}")
