"""Lets Ctrl-C reach a thread that is inside native code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

RETRY_S = 0.05

WAKE_S = 0.2


def run_interruptibly(work: Callable[[], Value], interrupt: Callable[[], None]) -> Value:
    """Runs `work` and returns or raises what it does.

    Python handles signals between bytecodes of the main thread, so on the main thread `work` goes to a
    second one while this one waits. If a signal handler raises (KeyboardInterrupt), calls `interrupt`
    until `work` returns, then lets the exception through.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    values: list[Value] = []
    failures: list[BaseException] = []
    # Not Thread.join: interrupted, it may take a running thread for a finished one (CPython 3.9 to 3.12).
    done = threading.Event()

    def guarded() -> None:
        try:
            values.append(work())
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    worker = threading.Thread(target=guarded, name="nextn-session", daemon=True)
    try:
        worker.start()
        # In turns: a signal that comes just before a wait, or to another thread, is seen only after it.
        while not done.wait(WAKE_S):
            pass
    except BaseException:
        if worker.ident is not None:
            _end(done, interrupt)
        raise
    if failures:
        raise failures[0]
    return values[0]


def _end(done: threading.Event, interrupt: Callable[[], None]) -> None:
    """Interrupts until done: the first may come too early for the work, the second must not leave it."""
    while not done.is_set():
        try:
            interrupt()
            done.wait(RETRY_S)
        except KeyboardInterrupt:
            continue
