"""The command `nextn-compile`: results on stdout, progress and one-line errors on stderr."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from nextn.compile.arguments import build_parser
from nextn.compile.progress import PROGRAM, warn
from nextn.runtime.contract.errors import ExitCode, NextnError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    Args:
        arguments: without the program name; None takes those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
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


def _run(given: list[str]) -> int:
    parsed = build_parser().parse_args(given)
    # The rest needs torch, which takes seconds to load; --help and usage errors should not.
    from nextn.compile.options import normalise

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
