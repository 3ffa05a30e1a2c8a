"""What both command-line tools do around their command: signals, standard streams, one line for a fault.

Imports little: Ctrl-C is handled only once this is loaded.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from nextn.runtime.contract.errors import ExecutionError, ExitCode, NextnError
from nextn.runtime.tool.interrupts import InterruptHandler

Command = Callable[[list[str]], int]
"""Takes arguments without the program name, returns an exit code."""


def run_tool(program: str, command: Command, arguments: Sequence[str] | None) -> int:
    """Runs `command` and returns its exit code; `--help` and `--version` raise SystemExit.

    Args:
        arguments: None takes those of the process, which `command` then is: its Ctrl-C is handled. Where
            SIGINT is ignored, as in a shell's background job, it stays so.
    """
    if arguments is not None:
        return _guarded(program, command, list(arguments))
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return _guarded(program, command, sys.argv[1:])
    signal.signal(signal.SIGINT, InterruptHandler(program))
    try:
        return _guarded(program, command, sys.argv[1:])
    finally:
        # The outcome is settled: what is left is the interpreter's own end, which has no answer to Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def say(line: str) -> None:
    """One line on stderr; the exit code stands if nobody can read it."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def _guarded(program: str, command: Command, arguments: list[str]) -> int:
    """Turns whatever stops the command into one line and an exit code."""
    try:
        return _with_stdout(command, arguments)
    except BrokenPipeError:  # whoever read has enough
        _abandon_stdout()
        return ExitCode.RUNTIME
    except KeyboardInterrupt as interrupt:
        message, code = str(interrupt) or "interrupted", ExitCode.INTERRUPTED
        _print_traceback(arguments)
    except Exception as error:
        message, code = _described(error)
        _print_traceback(arguments)
        if isinstance(error, OSError):
            _abandon_stdout()
    say(f"{program}: error: {' '.join(message.split())}")
    return code


def _with_stdout(command: Command, arguments: list[str]) -> int:
    if sys.stdout is None:
        raise ExecutionError("stdout is closed: there is nowhere to print results")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # text may not fit the locale's encoding
    try:
        return int(command(arguments))
    finally:
        sys.stdout.flush()


def _described(error: Exception) -> tuple[str, ExitCode]:
    if isinstance(error, NextnError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        where = "" if error.filename is None else f" (file {error.filename})"
        return f"{error.strerror or error}{where}", ExitCode.RUNTIME
    if isinstance(error, MemoryError):
        return "out of memory", ExitCode.RUNTIME
    text = f"internal error: {type(error).__name__}: {error} (--debug prints a traceback)"
    return text, ExitCode.RUNTIME


def _print_traceback(arguments: Sequence[str]) -> None:
    if "--debug" in arguments and sys.stderr is not None:
        import traceback

        with suppress(OSError):
            traceback.print_exc()


def _abandon_stdout() -> None:
    """Nobody reads stdout: keeps the interpreter from failing once more when it flushes at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
