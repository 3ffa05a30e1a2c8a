"""Ctrl-C in the command-line tools: exit code 130 and at most one line, whenever it comes.

Raising KeyboardInterrupt does not reliably end a process that imports or loads: callbacks inside large
libraries swallow it, and what they were doing prints a traceback. So a tool ends at once, except inside an
`orderly` block, which has results to finish or files to clean.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nextn.runtime.contract.errors import ExitCode

PATIENCE_S = 1.0
"""A further Ctrl-C ends an orderly shutdown this long after the first; until then it is the same one."""


class InterruptHandler:
    """The SIGINT handler of a tool's process."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._first: float | None = None
        self.orderly = False

    @property
    def interrupted(self) -> bool:
        return self._first is not None

    def __call__(self, _number: int, _frame: object) -> None:
        now = time.monotonic()
        if self._first is None and self.orderly:
            self._first = now
            raise KeyboardInterrupt
        if self._first is None:
            with suppress(OSError):
                os.write(2, f"{self._program}: error: interrupted\n".encode())
            os._exit(ExitCode.INTERRUPTED)
        if now - self._first > PATIENCE_S:
            os._exit(ExitCode.INTERRUPTED)


@contextmanager
def orderly() -> Iterator[None]:
    """Here Ctrl-C raises KeyboardInterrupt, once; it comes at the end of the block if it was swallowed.

    Outside a tool's process nothing changes.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not isinstance(handler, InterruptHandler):
        yield
        return
    handler.orderly = True
    try:
        yield
    finally:
        handler.orderly = False
    if handler.interrupted:
        raise KeyboardInterrupt
