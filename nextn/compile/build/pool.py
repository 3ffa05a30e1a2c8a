"""Runs compile workers, as many at once as CPUs and free memory allow."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextn.compile.build import failure_log
from nextn.compile.build.machine import Machine
from nextn.compile.build.worker import GraphJob
from nextn.runtime.contract.errors import ExecutionError

WORKER_COMMAND = (sys.executable, "-P", "-m", "nextn.compile.build.worker")
"""-P: `-m` alone would import a file of the working folder that has a module's name, such as queue.py."""

_POLL_SECONDS = 0.05

_LEAST_FREE_BYTES = 4 * 1024 * 1024
"""A compiler that has less to write to fails for want of it, whatever it says."""

_DISK_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


@dataclass
class _Running:
    job: GraphJob
    process: subprocess.Popen[bytes]
    log: Path
    started: float


def worker_count(num_jobs: int, bytes_per_job: int, requested: int | None, machine: Machine) -> int:
    """How many workers run at once: what was asked for, else a CPU each; never more than memory holds.

    At least 1: the estimate of `bytes_per_job` is a generous one.
    """
    wanted = machine.cpus if requested is None else requested
    return max(1, min(wanted, machine.memory // bytes_per_job, num_jobs))


def run_workers(
    jobs: Sequence[GraphJob],
    *,
    num_workers: int,
    scratch: Path,
    logs: Path,
    environment: Mapping[str, str],
    finished: Callable[[GraphJob, Mapping[str, Any], float], None],
    command: Sequence[str] = WORKER_COMMAND,
) -> None:
    """Compiles every job; calls `finished(job, description, seconds)` after each.

    Args:
        scratch: folder for job files, logs and what the workers leave; by an absolute path
            that may stand in a compiler's command line.
        logs: folder that keeps the log of a worker that failed; made when the first does.
        environment: added to the workers' environment.
        command: the worker program, to which a job file and this process's id are added.

    Raises ExecutionError naming the graph, the cause and the kept log if a worker fails. Workers that still
    run are ended before this returns, whichever way it returns.
    """
    waiting = deque(jobs)
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < num_workers:
                running.append(_start(waiting.popleft(), scratch, environment, command))
            time.sleep(_POLL_SECONDS)
            for worker in [item for item in running if item.process.poll() is not None]:
                running.remove(worker)
                finished(worker.job, _description(worker, logs), time.monotonic() - worker.started)
    finally:
        for worker in running:
            _end(worker.process)


def _start(job: GraphJob, scratch: Path, environment: Mapping[str, str], command: Sequence[str]) -> _Running:
    folder = scratch / job.key
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    description = folder / "job.json"
    description.write_text(job.to_json())
    log = folder / "log.txt"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*command, str(description), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment, "TMPDIR": str(temporary)},
            # A group of its own: an interrupt reaches the parent alone, which ends compiler and children.
            start_new_session=True,
        )
    return _Running(job, process, log, time.monotonic())


def _description(worker: _Running, logs: Path) -> dict[str, Any]:
    """What a worker says of the library it made; ExecutionError if it made none."""
    code = worker.process.returncode
    try:
        if code == 0:
            description: dict[str, Any] = json.loads(worker.job.description.read_text())
            return description
    except (OSError, ValueError):
        pass
    failed = f"compiling graph {worker.job.key} failed"
    log = worker.log.read_text(errors="replace")
    free = shutil.disk_usage(worker.log.parent).free
    # A full disk cuts the log as well, so that it need not say so.
    if free < _LEAST_FREE_BYTES or any(sign in log for sign in _DISK_FULL):
        raise ExecutionError(
            f"{failed}: no space left on the disk of the artifact",
            file=logs.parent,
            expected="free space for compiler files",
            found=f"{free} bytes free",
        )
    ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
    cause = failure_log.cause(log, killed=code < 0)
    what = (
        f"{ending}; its log ends: {failure_log.last_line(log)}"
        if cause is None
        else f"{ending}: {cause}; its log is kept"
    )
    raise ExecutionError(f"{failed}: {what}", file=failure_log.kept(worker.log, logs, worker.job.key))


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
