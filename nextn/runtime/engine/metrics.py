"""Figures of one request, by the definitions SGLang and vLLM use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles

from nextn.runtime.bindings.session import SessionResult


@dataclass(frozen=True)
class Acceptance:
    """How far drafts were accepted, pooled over row-rounds; None where nothing was measured.

    `mean_acceptance_length` counts the bonus token (1 .. k+1); `draft_acceptance_rate` is accepted over
    proposed drafts, so mean = 1 + k * rate; `acceptance_rate_per_position[i]` is the share of row-rounds
    in which drafts 1 .. i+1 were all accepted.
    """

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_rate_per_position: tuple[float, ...] | None

    @staticmethod
    def of_counts(
        row_rounds: int, accepted: int, accepted_at_least: Sequence[int], num_steps: int
    ) -> Acceptance:
        """From counters; `num_steps` is k, 0 without speculation."""
        if row_rounds == 0:
            return Acceptance(None, None, None)
        return Acceptance(
            1 + accepted / row_rounds,
            accepted / (row_rounds * num_steps) if num_steps else None,
            tuple(count / row_rounds for count in accepted_at_least[:num_steps]),
        )

    @staticmethod
    def of_accept_lens(accept_lens: Sequence[int], num_steps: int) -> Acceptance:
        accepted = [length - 1 for length in accept_lens]
        at_least = [sum(count > step for count in accepted) for step in range(num_steps)]
        return Acceptance.of_counts(len(accepted), sum(accepted), at_least, num_steps)


@dataclass(frozen=True)
class RequestMetrics:
    """One request; times in milliseconds since submit, `tpot_ms` per token after the first.

    A time is None if the tokens it needs did not come.
    """

    num_rounds: int
    acceptance: Acceptance
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None

    @staticmethod
    def of(result: SessionResult, num_steps: int) -> RequestMetrics:
        after_first = len(result.tokens) - 1
        return RequestMetrics(
            num_rounds=len(result.accept_lens),
            acceptance=Acceptance.of_accept_lens(result.accept_lens, num_steps),
            ttft_ms=result.ttft_ms if result.tokens else None,
            tpot_ms=(result.e2e_ms - result.ttft_ms) / after_first if after_first > 0 else None,
            e2e_ms=result.e2e_ms if result.tokens else None,
        )


@dataclass(frozen=True)
class Percentiles:
    """Median and 99th percentile, linearly interpolated."""

    p50: float
    p99: float

    @staticmethod
    def of(values: Iterable[float | None]) -> Percentiles | None:
        measured = [value for value in values if value is not None]
        if not measured:
            return None
        if len(measured) == 1:
            return Percentiles(measured[0], measured[0])
        cuts = quantiles(measured, n=100, method="inclusive")
        return Percentiles(cuts[49], cuts[98])
