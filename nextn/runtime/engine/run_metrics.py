"""Figures of a run of requests: pooled acceptance, launches, times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from nextn.runtime.bindings.session import RoundTimes, SessionMetrics
from nextn.runtime.engine.completion import Completion
from nextn.runtime.engine.metrics import Acceptance, Percentiles


@dataclass(frozen=True)
class DraftForwards:
    """NextN forwards by the graph that ran them; `prefill` are those of seed launches."""

    extend: int
    step: int
    prefill: int


@dataclass(frozen=True)
class RunMetrics:
    """One run of requests. `elapsed_ms` is wall time; `*_us` are per round, phases only with --phases."""

    num_requests: int
    prompt_tokens: int
    generated_tokens: int
    elapsed_ms: float
    tokens_per_second: float | None
    num_rounds: int
    num_row_rounds: int
    acceptance: Acceptance
    num_draft_forwards: DraftForwards
    num_graph_launches: int
    num_prefill_launches: int
    prefill_ms: float
    decode_ms: float
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    e2e_ms: Percentiles | None
    round_us: dict[str, Percentiles]


def run_metrics(
    completions: Sequence[Completion],
    counters: SessionMetrics,
    times: Sequence[RoundTimes],
    *,
    num_steps: int,
    phases: bool,
    elapsed_ms: float,
) -> RunMetrics:
    """Figures of a run from its completions, the counters it added and the timings of its rounds."""
    measured = [completion.metrics for completion in completions if completion.metrics is not None]
    generated = sum(len(completion.token_ids) for completion in completions)
    timed = [field.name for field in fields(RoundTimes)] if phases else ["graph_us", "host_us"]
    spread = {name: Percentiles.of(getattr(entry, name) for entry in times) for name in timed}
    return RunMetrics(
        num_requests=len(completions),
        prompt_tokens=sum(completion.prompt_tokens for completion in completions),
        generated_tokens=generated,
        elapsed_ms=elapsed_ms,
        tokens_per_second=generated * 1000 / elapsed_ms if elapsed_ms > 0 else None,
        num_rounds=counters.num_rounds,
        num_row_rounds=counters.num_row_rounds,
        acceptance=Acceptance.of_counts(
            counters.num_row_rounds, counters.num_accepted, counters.accepted_at_least, num_steps
        ),
        num_draft_forwards=DraftForwards(
            counters.num_draft_forwards_extend,
            counters.num_draft_forwards_step,
            counters.num_draft_forwards_prefill,
        ),
        num_graph_launches=counters.num_graph_launches,
        num_prefill_launches=counters.num_prefill_launches,
        prefill_ms=counters.prefill_ms,
        decode_ms=counters.decode_ms,
        ttft_ms=Percentiles.of(metrics.ttft_ms for metrics in measured),
        tpot_ms=Percentiles.of(metrics.tpot_ms for metrics in measured),
        e2e_ms=Percentiles.of(metrics.e2e_ms for metrics in measured),
        round_us={name: value for name, value in spread.items() if value is not None},
    )


def since(before: SessionMetrics, after: SessionMetrics) -> SessionMetrics:
    """What a session's counters gained between two readings."""
    gained = {
        field.name: getattr(after, field.name) - getattr(before, field.name)
        for field in fields(SessionMetrics)
        if field.name != "accepted_at_least"
    }
    at_least = zip(before.accepted_at_least, after.accepted_at_least, strict=True)
    return SessionMetrics(accepted_at_least=tuple(late - early for early, late in at_least), **gained)
