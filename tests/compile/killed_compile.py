"""The stand-in compile as a process that kills itself: `killed_compile.py WHEN FILE ARGUMENTS`.

WHEN is `before` or `after` the rename that gives FILE its name.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from stand_in_compile import main  # beside this script

replace = os.replace


def run() -> int:
    when, file, *arguments = sys.argv[1:]

    def replace_or_die(source: Any, target: Any) -> None:
        chosen = Path(target).name == file
        if not (chosen and when == "before"):
            replace(source, target)
        if chosen:
            os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch("os.replace", replace_or_die):
        return main(arguments)


if __name__ == "__main__":
    sys.exit(run())
