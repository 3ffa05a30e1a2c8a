"""The argument parser of nextn-run. Values are only typed here; `options` checks them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence

from nextn.runtime.contract.version import VERSION
from nextn.runtime.engine.requests import DEFAULTS
from nextn.runtime.tool.command_line import OneLineParser

_NEGATIVE_VALUE = re.compile(r"-[\d.]")


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Raises UsageError for arguments that do not parse."""
    return build_parser().parse_args(_attach_negative_values(argv))


def build_parser() -> argparse.ArgumentParser:
    """Every flag of the command line, with its default."""
    parser = OneLineParser(
        prog="nextn-run",
        description="Replay a compiled artifact: results on stdout, figures on stderr.",
        epilog="exit codes: 0 ok, 2 usage or a bad request, 4 artifact, 5 runtime or disk, 130 interrupted",
        allow_abbrev=False,
    )
    parser.add_argument("artifact", nargs="?", metavar="ART", help="artifact folder")
    _add_prompts(parser)
    _add_settings(parser)
    _add_execution(parser)
    _add_modes(parser)
    return parser


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts (one of)")
    group.add_argument("--prompt", type=_typed_text, metavar="TEXT")
    group.add_argument("--prompt-file", metavar="F", help="a UTF-8 text file, used as it is")
    group.add_argument("--token-ids", metavar="1,2,3")
    group.add_argument("--requests", metavar="F|-", help="one JSON request per line; - reads stdin")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings (defaults for --requests)")
    group.add_argument("--max-new-tokens", type=int, default=DEFAULTS["max_new_tokens"], metavar="N")
    group.add_argument("--temperature", type=float, default=DEFAULTS["temperature"], help="0 is greedy")
    group.add_argument("--seed", type=int, default=DEFAULTS["seed"], metavar="N")
    group.add_argument(
        "--stop", type=_typed_text, action="append", default=[], metavar="TEXT", help="may be repeated"
    )
    group.add_argument("--ignore-eos", action="store_true", help="treat EOS as an ordinary token")
    for flag, kind in (("--top-k", int), ("--top-p", float), ("--min-p", float), ("--logprobs", int)):
        default = DEFAULTS[flag[2:].replace("-", "_")]
        group.add_argument(flag, type=kind, default=default, help="not in this build")


def _add_execution(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument("--no-speculation", action="store_true", help="replay the plain decode graph")
    group.add_argument("--phases", action="store_true", help="replay each phase by itself and time it")
    group.add_argument("--device", choices=("cpu", "cuda", "npu"), help="the artifact's own; cpu for pt2")
    group.add_argument(
        "--executor", metavar="E", help="native, onnxruntime or capture; must be the artifact's"
    )
    group.add_argument("--stream", action="store_true", help="print text as it comes")
    group.add_argument("--json", action="store_true", help="print one JSON object per line")
    group.add_argument("--debug", action="store_true", help="print a traceback with an error")
    group.add_argument("--version", action="version", version=f"nextn-run {VERSION}")


def _add_modes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("instead of prompts")
    group.add_argument("--selftest", action="store_true", help="replay the artifact's golden runs")
    group.add_argument("--verify-weights", action="store_true", help="hash the whole weights file")
    group.add_argument("--info", action="store_true", help="describe the artifact")
    group.add_argument("--bench", action="store_true", help="not in this build")


def _attach_negative_values(argv: Sequence[str]) -> list[str]:
    """`--token-ids -1,2` -> `--token-ids=-1,2`: argparse takes such a value for a flag."""
    attached: list[str] = []
    for argument in argv:
        previous = attached[-1] if attached else ""
        if _NEGATIVE_VALUE.match(argument) and previous.startswith("--") and "=" not in previous:
            attached[-1] = f"{previous}={argument}"
        else:
            attached.append(argument)
    return attached


def _typed_text(argument: str) -> str:
    """An argument as UTF-8, which terminals send also where the locale claims ASCII (`LC_ALL=C`).

    What is not UTF-8 stays as the locale reads it; a prompt with lone surrogates is refused later.
    """
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError:
        return argument
