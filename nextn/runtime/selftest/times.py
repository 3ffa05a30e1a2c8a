"""`SelftestTimes`: how long graphs and rounds took while golden runs were replayed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

from nextn.runtime import executors
from nextn.runtime.bindings.executor import Executor
from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session


class SelftestTimes:
    """Medians over all sessions. Graph by graph only for an artifact whose graphs an executor runs."""

    def __init__(self) -> None:
        self._launch_us: dict[str, list[float]] = defaultdict(list)
        self._run_us: dict[str, list[float]] = defaultdict(list)
        self._rounds: dict[str, list[dict[str, float]]] = defaultdict(list)

    def executor(self, model: Model) -> Executor | None:
        """The artifact's own executor, timed; None where libnextn runs the graphs."""
        executor = executors.make(model)
        return None if executor is None else _TimedExecutor(executor, self._launch_us, self._run_us)

    def keep_rounds(self, kind: str, session: Session) -> None:
        """`kind` names the graphs of the session's rounds."""
        self._rounds[kind] += [asdict(entry) for entry in session.round_times()]

    def to_dict(self) -> dict[str, Any]:
        """Microseconds: per graph until its launch returned, and until it had run; per round as in a run."""
        graphs = {
            graph: {
                "launches": len(times),
                "launch_us": _median(times),
                "run_us": _median(self._run_us[graph]),
            }
            for graph, times in sorted(self._launch_us.items())
        }
        rounds = {
            kind: {"rounds": len(entries)}
            | {
                name: _median([entry[name] for entry in entries])
                for name in entries[0]
                if any(entry[name] for entry in entries)  # phases, where there are any
            }
            for kind, entries in self._rounds.items()
            if entries
        }
        return {"graphs": graphs, "rounds": rounds}


class _TimedExecutor:
    """An executor with a clock. A session waits after every launch, one way or the other."""

    def __init__(
        self, executor: Executor, launch_us: dict[str, list[float]], run_us: dict[str, list[float]]
    ) -> None:
        self._executor = executor
        self._launch_us = launch_us
        self._run_us = run_us
        self._running: tuple[str, float] | None = None

    def attach(self, memory: Mapping[str, memoryview]) -> None:
        self._executor.attach(memory)

    def load(self, graph: str) -> None:
        self._executor.load(graph)

    def write(self, name: str, start: int, stop: int) -> None:
        self._executor.write(name, start, stop)

    def launch(self, graph: str) -> None:
        started = time.perf_counter()
        self._executor.launch(graph)
        self._launch_us[graph].append((time.perf_counter() - started) * 1e6)
        self._running = graph, started

    def wait(self) -> None:
        self._executor.wait()
        self._finished()

    def read(self, name: str) -> None:
        self._executor.read(name)
        self._finished()

    def close(self) -> None:
        self._executor.close()

    def _finished(self) -> None:
        if self._running is not None:
            graph, started = self._running
            self._run_us[graph].append((time.perf_counter() - started) * 1e6)
            self._running = None


def _median(times: list[float]) -> float | None:
    return round(median(times), 2) if times else None
