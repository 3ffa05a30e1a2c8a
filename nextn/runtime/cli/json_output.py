"""The JSON forms of what nextn-run prints; keys are part of the public interface."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from nextn.runtime.engine.completion import Completion
from nextn.runtime.engine.generation import Delta
from nextn.runtime.engine.metrics import Acceptance, RequestMetrics
from nextn.runtime.engine.run_metrics import RunMetrics


def line(value: dict[str, Any]) -> str:
    """One ASCII line: readable in any locale, by any line splitter."""
    return json.dumps(value) + "\n"


def completion_object(completion: Completion) -> dict[str, Any]:
    value: dict[str, Any] = {
        "id": completion.id,
        "prompt_tokens": completion.prompt_tokens,
        "token_ids": completion.token_ids,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "accept_lens": completion.accept_lens,
        "metrics": None if completion.metrics is None else request_metrics_object(completion.metrics),
    }
    if completion.error is not None:
        value["error"] = asdict(completion.error)
    return value


def delta_object(delta: Delta) -> dict[str, Any]:
    return {"id": delta.request, "delta": {"token_ids": delta.token_ids, "text": delta.text}}


def request_metrics_object(metrics: RequestMetrics) -> dict[str, Any]:
    return _with_acceptance(asdict(metrics), metrics.acceptance)


def summary_object(metrics: RunMetrics, num_refused: int) -> dict[str, Any]:
    """The last line of `--json`; `num_refused` requests never ran and are in no other figure."""
    value = _with_acceptance(asdict(metrics), metrics.acceptance)
    rounds = value.pop("round_us")
    return {"summary": {"num_refused": num_refused, **value, **rounds}}


def _with_acceptance(value: dict[str, Any], acceptance: Acceptance) -> dict[str, Any]:
    """Acceptance figures stand beside the others, not below a key of their own."""
    return {name: item for name, item in value.items() if name != "acceptance"} | asdict(acceptance)
