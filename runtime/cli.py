"""The command `nextn-run`: results on stdout, figures and one-line errors on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nextn.runtime.contract.interrupts import run_tool

PROGRAM = "nextn-run"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; `--help` and `--version` raise SystemExit.

    Args:
        arguments: without the program name; None takes those of the process, whose Ctrl-C is then handled.
    """
    if arguments is None:
        return run_tool(PROGRAM, lambda: _run(sys.argv[1:]))
    return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    # Imported once Ctrl-C is handled: this takes a tenth of a second.
    from nextn.runtime.command import run_command

    return run_command(arguments)


if __name__ == "__main__":
    sys.exit(main())
