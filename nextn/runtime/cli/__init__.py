"""The command `nextn-run`: results on stdout, figures and one-line errors on stderr."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.runtime.tool.run_tool import run_tool

PROGRAM = "nextn-run"


def main(arguments: Sequence[str] | None = None) -> int:
    """`run_tool` of this program."""
    return run_tool(PROGRAM, _run, arguments)


def _run(arguments: list[str]) -> int:
    # Imported once Ctrl-C is handled: this takes a tenth of a second.
    from nextn.runtime.cli.command import run_command

    return run_command(arguments)
