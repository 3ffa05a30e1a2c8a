"""The argument parser of nextn-compile. Values are only typed here; `options` checks them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from nextn.compile.targets.registry import TARGETS, default_targets, flags
from nextn.runtime.contract.version import VERSION
from nextn.runtime.tool.command_line import OneLineParser


def build_parser() -> argparse.ArgumentParser:
    """Every flag of the design's command line, with its default."""
    parser = OneLineParser(
        prog="nextn-compile",
        description="Compile a DeepSeek-V4 checkpoint and its NextN layer to a folder of fixed-shape graphs.",
        epilog="exit codes: 0 ok, 2 usage, 3 checkpoint, 4 artifact, 5 toolchain or disk, 130 interrupted",
        allow_abbrev=False,
    )
    parser.add_argument(
        "checkpoint", nargs="?", metavar="CHECKPOINT", help="checkpoint folder, or `demo` for the bundled one"
    )
    parser.add_argument("-o", "--output", metavar="ART", help="artifact folder to write")
    _add_target(parser)
    _add_shape(parser)
    _add_speculation(parser)
    _add_run(parser)
    return parser


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("target")
    defaults = default_targets()
    group.add_argument("--device", choices=tuple(defaults), default=next(iter(defaults)))
    named, rest = _by_device({device: target.name for device, target in defaults.items()})
    emits = ", ".join([*named, f"{rest} elsewhere"])
    group.add_argument("--emit", choices=tuple(TARGETS), help=f"graph format (default: {emits})")
    named, rest = _by_device({device: one.default_dtype(device) for device, one in defaults.items()})
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help=f"compute dtype (default: {'; '.join([rest, *named])})",
    )
    for flag in flags():
        group.add_argument(flag.name, **flag.settings)


def _by_device(values: Mapping[str, str]) -> tuple[list[str], str]:
    """Values of devices for a help text: `VALUE on DEVICE` for some, and the value of all the others."""
    *_, rest = values.values()
    return [f"{value} on {device}" for device, value in values.items() if value != rest], rest


def _add_shape(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("shapes")
    group.add_argument("--batch-sizes", default="1", metavar="B,B", help="decode batch sizes (default: 1)")
    group.add_argument(
        "--max-seq-len",
        type=int,
        metavar="N",
        help="prompt + generated tokens of a request (default: min(4096, the model's))",
    )
    group.add_argument("--prefill-chunk", type=int, default=128, metavar="C", help="tokens (default: 128)")


def _add_speculation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation")
    group.add_argument(
        "--speculative-algorithm",
        choices=("EAGLE", "NEXTN"),
        default="EAGLE",
        help="NEXTN is an alias of EAGLE",
    )
    group.add_argument("--speculative-num-steps", type=int, default=3, metavar="K", help="0..8 (default: 3)")
    group.add_argument(
        "--speculative-eagle-topk", type=int, default=1, metavar="1", help="only 1 is supported"
    )
    group.add_argument("--speculative-num-draft-tokens", type=int, metavar="K+1", help="always K+1")
    group.add_argument("--speculative-draft-model-path", metavar="DIR", help="folder to take mtp.* from")


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument(
        "--jobs", type=int, metavar="N", help="graphs compiled at once (default: by CPUs and memory)"
    )
    group.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    group.add_argument("--force", action="store_true", help="replace an artifact made from other inputs")
    group.add_argument("--json", action="store_true", help="print the plan or the summary as JSON")
    group.add_argument("--inspect", action="store_true", help="describe the checkpoint")
    group.add_argument("--check-finite", action="store_true", help="look for NaN and Inf in the checkpoint")
    group.add_argument("--config-only", metavar="CONFIG", help="plan or trace from a config.json alone")
    group.add_argument("--trace-only", action="store_true", help="trace the graphs on fake tensors and stop")
    group.add_argument("--debug", action="store_true", help="print a traceback with an error")
    group.add_argument("--version", action="version", version=f"nextn-compile {VERSION}")
