"""`nextn-compile` as a process of its own, with the stand-in worker: `stand_in_compile.py ARGUMENTS`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from nextn.compile import cli
from nextn.compile.cli.command import compile_command

WORKER = (sys.executable, str(Path(__file__).with_name("stand_in_worker.py")))
STUB_GRAPH_WORKER = (sys.executable, "-P", str(Path(__file__).with_name("stub_graph_worker.py")))


def main(arguments: Sequence[str] | None = None, worker: Sequence[str] = WORKER) -> int:
    # Swaps the default of the last parameter, the worker command; and golden runs need not be long.
    with (
        mock.patch.object(compile_command, "__defaults__", (worker,)),
        mock.patch("nextn.compile.build.golden.NEW_TOKENS", 2),
    ):
        return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
