"""The command `nextn-compile`: results on stdout, progress and one-line errors on stderr."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.runtime.contract.errors import ExitCode
from nextn.runtime.tool.run_tool import run_tool

PROGRAM = "nextn-compile"


def main(arguments: Sequence[str] | None = None) -> int:
    """`run_tool` of this program."""
    return run_tool(PROGRAM, _run, arguments)


def _run(arguments: list[str]) -> int:
    # Imported once Ctrl-C is handled. All but the parser needs torch, which takes seconds to load; --help and
    # usage errors should not.
    from nextn.compile.cli.arguments import build_parser
    from nextn.compile.targets.registry import flags
    from nextn.runtime.tool.torch_backends import load_no_backends

    parser = build_parser()
    parsed = parser.parse_args(arguments)
    load_no_backends()
    for flag in flags():
        if flag.command is not None and flag.value(parsed) is not None:
            flag.command(parsed, parser.parse_args([]))
            return ExitCode.OK
    from nextn.compile.build.progress import warn
    from nextn.compile.cli.options import normalise

    options, warnings = normalise(parsed)
    for warning in warnings:
        warn(warning)
    from nextn.compile.cli.command import compile_command

    compile_command(options, (PROGRAM, *arguments))
    return ExitCode.OK
