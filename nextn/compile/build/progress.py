"""What nextn-compile says on stderr while it works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.text import Text

from nextn.compile.cli import PROGRAM
from nextn.runtime.contract.errors import one_line
from nextn.runtime.tool.run_tool import say

LINE_SECONDS = 10.0
"""How often a log is told about a long step."""

_REFRESH_SECONDS = 0.2


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


class Meter:
    """Says how far a count of bytes has come, how fast it grows and how long that will take.

    Args:
        show: takes one line of text.
        clock: seconds.
    """

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._started = clock()
        self._shown = -_REFRESH_SECONDS
        self._first: int | None = None

    def __call__(self, name: str, done: int, total: int) -> None:
        """`done` of `total` bytes are there; `name` is what was last worked on."""
        if self._first is None:
            self._first = done
        now = self._clock()
        if now - self._shown < _REFRESH_SECONDS:
            return
        self._shown = now
        # What an interrupted run had left took no time in this one.
        speed = (done - self._first) / max(now - self._started, 1e-9)
        left = f", {_duration((total - done) / speed)} left" if speed > 0 else ""
        amount = f"{readable_bytes(done)} of {readable_bytes(total)}"
        self._show(f"{amount}, {readable_bytes(round(speed))}/s{left}, {name}")


def readable_bytes(count: int) -> str:
    """A byte count in decimal units, as `1.2 MB`."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _duration(seconds: float) -> str:
    """As `48 s` or `3 h 12 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def warn(text: str) -> None:
    """One line about something the user should know but that stops nothing."""
    say(f"{PROGRAM}: warning: {one_line(text)}")
