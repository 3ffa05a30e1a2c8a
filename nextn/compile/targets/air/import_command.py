"""What `nextn-compile --import-om` does with its command line."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from nextn.compile.build.progress import readable_bytes, warn
from nextn.compile.cli.arguments import build_parser
from nextn.compile.targets.air.import_om import import_om
from nextn.runtime.contract.errors import UsageError

_USED = ("import_om", "output", "json", "debug")


def import_command(arguments: argparse.Namespace) -> None:
    """Imports, and prints what was done. Raises the errors of `import_om`, UsageError for other flags."""
    _check(arguments)
    summary = import_om(Path(arguments.import_om), Path(arguments.output))
    if summary.unchecked is not None:
        warn(f"inputs and outputs of the .om files were not checked: {summary.unchecked}")
    if arguments.json:
        print(json.dumps(asdict(summary)))
    elif summary.up_to_date:
        print(f"{summary.artifact} is up to date")
    else:
        chip = f" for {summary.soc}" if summary.soc is not None else ""
        size = readable_bytes(summary.bytes)
        print(f"{summary.artifact}: {summary.graphs} graphs{chip} imported, {size}")


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.import_om or not arguments.output:
        raise UsageError("--import-om takes two folders", expected="--import-om DIR -o ARTIFACT")
    idle = vars(build_parser().parse_args([]))
    for name, value in vars(arguments).items():
        if name not in _USED and value != idle[name]:
            flag = "CHECKPOINT" if name == "checkpoint" else "--" + name.replace("_", "-")
            raise UsageError(f"--import-om completes an artifact as it is: {flag} would do nothing")
