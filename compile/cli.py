"""The command `nextn-compile`: results on stdout, progress and one-line errors on stderr."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from nextn.runtime.contract.errors import ExitCode, NextnError
from nextn.runtime.contract.interrupts import run_tool

PROGRAM = "nextn-compile"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; `--help` and `--version` raise SystemExit.

    Args:
        arguments: without the program name; None takes those of the process, whose Ctrl-C is then handled.
    """
    if arguments is None:
        return run_tool(PROGRAM, lambda: _report(sys.argv[1:]))
    return _report(list(arguments))


def _report(given: list[str]) -> int:
    """Turns whatever stops the command into one line and an exit code."""
    debug = "--debug" in given
    try:
        return _run(given)
    except NextnError as error:
        return _fail(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        return _fail("interrupted; run the same command again to continue", ExitCode.INTERRUPTED, debug)
    except OSError as error:
        where = "" if error.filename is None else f" (file {error.filename})"
        return _fail(f"{error.strerror or error}{where}", ExitCode.RUNTIME, debug)
    except MemoryError:
        return _fail("out of memory", ExitCode.RUNTIME, debug)
    except Exception as error:
        what = f"internal error: {type(error).__name__}: {error} (--debug prints a traceback)"
        return _fail(what, ExitCode.RUNTIME, debug)


def _run(given: list[str]) -> int:
    # Imported once Ctrl-C is handled. All but the parser needs torch, which takes seconds to load; --help and
    # usage errors should not.
    from nextn.compile.arguments import build_parser

    parsed = build_parser().parse_args(given)
    from nextn.compile.options import normalise
    from nextn.compile.progress import warn

    options, warnings = normalise(parsed)
    for warning in warnings:
        warn(warning)
    from nextn.compile.command import compile_command

    compile_command(options, (PROGRAM, *given))
    return ExitCode.OK


def _fail(message: str, code: ExitCode, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"{PROGRAM}: error: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
