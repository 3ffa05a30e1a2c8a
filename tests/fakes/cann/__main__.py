"""Runs a Python program on the fake: `python -m tests.fakes.cann PROGRAM [ARGUMENT ...]`."""

from __future__ import annotations

import runpy
import sys

from tests.fakes.cann.preload import preload

if len(sys.argv) < 2:
    sys.exit(__doc__)
preload()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
