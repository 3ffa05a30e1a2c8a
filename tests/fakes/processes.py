"""Runs a few lines of Python in a process of their own: torch_npu asks for devices once per process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PRELOAD = "from tests.fakes.cann.preload import preload; preload()\n"


def run_python(
    code: str, *, on_the_fake: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", (PRELOAD if on_the_fake else "") + code],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        timeout=120,
    )
