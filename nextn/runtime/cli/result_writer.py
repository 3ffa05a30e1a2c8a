"""Prints completions as they come: results to stdout, errors and figures to stderr."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Protocol

from rich.console import Console

from nextn.runtime.cli import PROGRAM, json_output
from nextn.runtime.cli.reports import run_table
from nextn.runtime.engine.completion import Completion
from nextn.runtime.engine.generation import Delta
from nextn.runtime.engine.run_metrics import RunMetrics
from nextn.runtime.tool.run_tool import say


class ResultWriter(Protocol):
    """What the run loop tells about progress; every call leaves stdout flushed."""

    def delta(self, delta: Delta) -> None: ...

    def completion(self, completion: Completion) -> None: ...

    def summary(self, metrics: RunMetrics, num_refused: int) -> None: ...


class JsonWriter:
    """One object per line: deltas, completions, then the summary."""

    def delta(self, delta: Delta) -> None:
        _print(json_output.line(json_output.delta_object(delta)))

    def completion(self, completion: Completion) -> None:
        report_failure(completion)
        _print(json_output.line(json_output.completion_object(completion)))

    def summary(self, metrics: RunMetrics, num_refused: int) -> None:
        _print(json_output.line(json_output.summary_object(metrics, num_refused)))


class TextWriter:
    """The text alone, or token ids without a tokenizer; several results are headed `==> id <==`."""

    def __init__(self, *, headed: bool) -> None:
        self._headed = headed
        self._streamed = False

    def delta(self, delta: Delta) -> None:
        if delta.text is not None:
            _print(delta.text)
        else:
            separator = "," if self._streamed and delta.token_ids else ""
            _print(separator + _joined(delta.token_ids))
        self._streamed = True

    def completion(self, completion: Completion) -> None:
        report_failure(completion)
        if completion.error is not None:
            return
        if self._headed:
            _print(f"==> {completion.id} <==\n")
        text = _joined(completion.token_ids) if completion.text is None else completion.text
        _print("\n" if self._streamed else text + "\n")

    def summary(self, metrics: RunMetrics, num_refused: int) -> None:
        if metrics.num_requests:
            with suppress(OSError):  # results count, whoever reads the figures
                Console(stderr=True).print(run_table(metrics, num_refused))


def report_failure(completion: Completion) -> None:
    """Names a refused request on stderr."""
    if completion.error is not None:
        say(f"{PROGRAM}: error: request {completion.id}: {completion.error.message}")


def _joined(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids))


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
