"""Compile workers in this process: where a worker's work is small, starting it is most of the time."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nextn.compile.build.worker import GraphJob, run_job


def run_in_process(
    jobs: Sequence[GraphJob],
    *,
    finished: Callable[[GraphJob, Mapping[str, Any], float], None],
    **_settings_of_processes: object,
) -> None:
    """What `nextn.compile.build.pool.run_workers` does, one job after the other."""
    thresholds = gc.get_threshold()
    try:
        for job in jobs:
            started = time.monotonic()
            run_job(job)
            finished(job, json.loads(job.description.read_text()), time.monotonic() - started)
    finally:
        gc.set_threshold(*thresholds)
