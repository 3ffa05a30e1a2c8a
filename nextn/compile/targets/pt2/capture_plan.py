"""`CapturePlan`: the graphs that a session of exported programs captures, against the limits of a chip."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from nextn.compile.targets.ascend.limits import CaptureLimits
from nextn.graphs.phases import SEPARATE_PHASES, graph_keys
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.errors import UsageError

_OTHER_STREAMS = 2
"""The one that graphs are captured on, and the one they are replayed on."""

GraphKey = tuple[str, int]


@dataclass(frozen=True)
class CapturePlan:
    """Graphs that one session captures, by how it runs: whole rounds, separate phases, plain decoding.

    A count is 0 where there is no such session. `streams` is the most that any of them takes: one for each
    graph it holds, and two more. Sizes are numbers of rows: a whole round has one for a batch size; separate
    phases have two, of a window and of a draft step. `limits` is None if no chip was named.
    """

    soc: str | None
    round_graphs: int
    phases_graphs: int
    plain_graphs: int
    streams: int
    capture_sizes: int
    phases_capture_sizes: int
    limits: CaptureLimits | None
    left_out: str | None
    """Why there are no separate phases, where there could be."""

    @property
    def warning(self) -> str | None:
        """What the limits rule out."""
        return self.left_out and f"--phases will be refused: {self.left_out}"

    def table(self) -> Table:
        """For the printed plan."""
        limits = self.limits
        heading = "limit, which --soc would tell" if limits is None else f"limit of Ascend {limits.chip}"
        table = Table("one session captures", "", heading, title="graph capture")
        graphs, streams, sizes = (
            (limits.graphs, limits.streams, limits.capture_sizes) if limits else (None,) * 3
        )
        rows = {
            "graphs of whole rounds": (self.round_graphs, graphs),
            "graphs of separate phases": (self.phases_graphs, graphs),
            "graphs of plain decoding": (self.plain_graphs, graphs),
            "streams, at most": (self.streams, streams),
            "sizes of whole rounds, or of plain decoding": (self.capture_sizes, sizes),
            "sizes of separate phases": (self.phases_capture_sizes, sizes),
        }
        for label, (count, limit) in rows.items():
            table.add_row(label, str(count or "-"), str(limit or "-"))
        table.caption = self.left_out and f"not built: {self.left_out}"
        return table


def plan_captures(
    shape: SessionShape, soc: str | None, limits: CaptureLimits | None
) -> tuple[CapturePlan, list[GraphKey]]:
    """What sessions capture, and the graphs to build.

    Separate phases are left out where they would be more than the chip holds. Raises UsageError for more
    batch sizes than it holds even so.
    """
    built = graph_keys(shape)
    phases = _captured(built, left_out=("decode", "round"))
    has_phases = any(name in SEPARATE_PHASES for name, _ in built)
    rounds = _captured(built, left_out=("decode", *SEPARATE_PHASES)) if has_phases else 0
    plain = _captured(built, left_out=("seed", "round", *SEPARATE_PHASES))
    phases_sizes = _phases_sizes(shape) if has_phases else 0
    reason = None
    if limits is not None:
        _check_batch_sizes(shape, limits, max(rounds, plain))
        reason = _excess(phases, phases_sizes, limits) if has_phases else None
    if reason is not None:
        built = [key for key in built if key[0] not in SEPARATE_PHASES]
    if not has_phases or reason is not None:
        phases = phases_sizes = 0
    plan = CapturePlan(
        soc=soc,
        round_graphs=rounds,
        phases_graphs=phases,
        plain_graphs=plain,
        streams=max(rounds, phases, plain) + _OTHER_STREAMS,
        capture_sizes=len(shape.batch_sizes),
        phases_capture_sizes=phases_sizes,
        limits=limits,
        left_out=reason,
    )
    return plan, built


def _captured(built: list[GraphKey], left_out: tuple[str, ...]) -> int:
    return sum(name not in left_out for name, _ in built)


def _phases_sizes(shape: SessionShape) -> int:
    """Sizes of separate phases; a window of few requests may have as many rows as a step of many."""
    steps = (1,) if shape.num_steps > 1 else ()
    return len({batch * rows for batch in shape.batch_sizes for rows in (shape.window_rows, *steps)})


def _excess(phases: int, sizes: int, limits: CaptureLimits) -> str | None:
    """What a chip cannot hold of separate phases, None if it holds them."""
    if not _fits(phases, limits):
        return f"{phases} graphs of separate phases are more than an Ascend {limits.chip} holds"
    if limits.capture_sizes is not None and sizes > limits.capture_sizes:
        return (
            f"separate phases have {sizes} sizes, and an Ascend {limits.chip} captures {limits.capture_sizes}"
        )
    return None


def _fits(graphs: int, limits: CaptureLimits) -> bool:
    return graphs <= limits.graphs and graphs + _OTHER_STREAMS <= limits.streams


def _check_batch_sizes(shape: SessionShape, limits: CaptureLimits, graphs: int) -> None:
    sizes = len(shape.batch_sizes)
    if limits.capture_sizes is not None and sizes > limits.capture_sizes:
        raise UsageError(
            f"--batch-sizes: graphs of so many sizes cannot be captured on an Ascend {limits.chip}",
            expected=f"at most {limits.capture_sizes}",
            found=sizes,
        )
    if not _fits(graphs, limits):
        raise UsageError(
            f"--batch-sizes: a session would capture more graphs than an Ascend {limits.chip} holds",
            expected=f"at most {limits.graphs}",
            found=graphs,
        )
