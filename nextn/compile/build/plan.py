"""`Plan`: which graphs will be built, and the bytes that compiling and running them take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from nextn.compile.build.progress import readable_bytes
from nextn.compile.build.trace import declared_weights
from nextn.compile.targets.target import CaptureSummary, Target
from nextn.graphs.phases import graph_rows
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import input_table, state_table
from nextn.runtime.contract.graph_spec import StateSpec

COMPILE_JOB_BYTES = 1 << 30
"""Peak memory of one compile worker: measured 0.5 to 0.8 GB for graphs of 1000 to 5400 nodes."""


@dataclass(frozen=True)
class PlannedGraph:
    """One graph to build; `rows` is the number of rows per request of its first phase."""

    name: str
    batch: int
    rows: int

    @property
    def key(self) -> str:
        return f"{self.name}.b{self.batch}"


@dataclass(frozen=True)
class PlannedState:
    """One state buffer; bytes are for one slot, and `slots + 1` are allocated."""

    name: str
    dtype: str
    rows_per_slot: int
    row_width: int
    bytes_per_slot: int


@dataclass(frozen=True)
class Plan:
    """All byte counts are exact except `compile_job_bytes`, an estimate of one worker's peak.

    `capture` is None for graphs that are not captured.
    """

    graphs: tuple[PlannedGraph, ...]
    state: tuple[PlannedState, ...]
    num_steps: int
    dtype: str
    batch_sizes: tuple[int, ...]
    max_seq_len: int
    prefill_chunk: int
    slots: int
    weight_bytes: int
    state_bytes_per_slot: int
    state_bytes: int
    input_bytes: int
    compile_job_bytes: int
    compile_jobs: int
    capture: CaptureSummary | None

    @property
    def run_bytes(self) -> int:
        """Weights, state of all slots and the scratch slot, and inputs."""
        return self.weight_bytes + self.state_bytes + self.input_bytes

    @property
    def compile_bytes(self) -> int:
        """Peak estimate of all workers together."""
        return self.compile_job_bytes * self.compile_jobs

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        totals = {
            "num_graphs": len(self.graphs),
            "run_bytes": self.run_bytes,
            "compile_bytes": self.compile_bytes,
        }
        return asdict(self) | totals


def make_plan(shape: SessionShape, compile_jobs: int, target: Target) -> Plan:
    """Counts and sizes for a session shape; reads no weights.

    Args:
        compile_jobs: workers that will run at once.

    Raises the errors of `Target.select_graphs`.
    """
    state = state_table(shape)
    keys, capture = target.select_graphs(shape)
    return Plan(
        graphs=tuple(PlannedGraph(name, batch, graph_rows(name, shape)) for name, batch in keys),
        state=tuple(_planned_state(spec) for spec in state),
        num_steps=shape.num_steps,
        dtype=shape.dtype,
        batch_sizes=shape.batch_sizes,
        max_seq_len=shape.max_seq_len,
        prefill_chunk=shape.prefill_chunk,
        slots=shape.slots,
        weight_bytes=sum(w.nbytes for w in declared_weights(shape)),
        state_bytes_per_slot=sum(spec.nbytes(0) for spec in state),
        state_bytes=sum(spec.nbytes(shape.slots) for spec in state),
        input_bytes=sum(tensor.nbytes for tensor in input_table(shape)),
        compile_job_bytes=COMPILE_JOB_BYTES,
        compile_jobs=compile_jobs,
        capture=capture,
    )


def print_plan(plan: Plan, console: Console) -> None:
    """The plan as tables: graphs per batch size, then bytes."""
    graphs = Table("graph", "batch", "rows", title=f"{len(plan.graphs)} graphs, k = {plan.num_steps}")
    for graph in plan.graphs:
        graphs.add_row(graph.name, str(graph.batch), str(graph.rows))
    console.print(graphs)
    totals = Table("bytes", "", title=f"{plan.dtype}, {plan.slots} slots of {plan.max_seq_len} tokens")
    rows = {
        "weights": plan.weight_bytes,
        "state per slot": plan.state_bytes_per_slot,
        f"state, {plan.slots} + 1 slots": plan.state_bytes,
        "inputs": plan.input_bytes,
        "running, in all": plan.run_bytes,
        f"compiling, {plan.compile_jobs} at once (estimate)": plan.compile_bytes,
    }
    for label, count in rows.items():
        totals.add_row(label, readable_bytes(count))
    console.print(totals)
    if plan.capture is not None:
        console.print(plan.capture.table())


def _planned_state(spec: StateSpec) -> PlannedState:
    return PlannedState(spec.name, spec.dtype, spec.rows_per_slot, spec.row_width, spec.nbytes(0))
