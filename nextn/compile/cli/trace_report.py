"""`--trace-only`: every graph of a plan traced on fake tensors, which have shapes but no memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from torch._subclasses.fake_tensor import FakeTensorMode

from nextn.compile.build.plan import PlannedGraph
from nextn.compile.build.progress import Progress, readable_bytes
from nextn.compile.build.trace import trace
from nextn.graphs.model import Model
from nextn.graphs.phases import graph_keys, graph_rows
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State


@dataclass(frozen=True)
class GraphReport:
    """One traced graph: operator nodes, and the bytes of the tensors it binds by kind."""

    graph: PlannedGraph
    nodes: int
    weight_bytes: int
    state_bytes: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values, the graph's fields beside its own."""
        values = asdict(self)
        return values.pop("graph") | values


def trace_graphs(shape: SessionShape, progress: Progress) -> Iterator[GraphReport]:
    """Traces the graphs of `shape` one after another; no weight or state is allocated, so any size fits.

    Raises ExecutionError for a graph that breaks its contract.
    """
    model, state = fake_model(shape)
    for name, batch in graph_keys(shape):
        planned = PlannedGraph(name, batch, graph_rows(name, shape))
        started = time.monotonic()
        with progress.waiting(f"tracing {planned.key}"):
            traced = trace(name, batch, model, state, shape)
        sizes = {"weight": 0, "state": 0, "input": 0}
        for tensor in traced.spec.tensors:
            sizes[tensor.kind] += tensor.nbytes
        nodes = sum(node.op == "call_function" for node in traced.program.graph.nodes)
        report = GraphReport(
            planned, nodes, sizes["weight"], sizes["state"], round(time.monotonic() - started, 1)
        )
        progress.line(f"{planned.key}: {report.nodes} nodes in {report.seconds:.1f} s")
        yield report


def fake_model(shape: SessionShape) -> tuple[Model, State]:
    """Weights and state that have shapes and no memory."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return Model(shape), State(shape)


def peak_memory() -> int:
    """Bytes this process had resident at its largest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def print_reports(reports: list[GraphReport], console: Console) -> None:
    """One row a graph."""
    table = Table("graph", "nodes", "weights", "state", "seconds", title="traced on fake tensors")
    for report in reports:
        sizes = (readable_bytes(report.weight_bytes), readable_bytes(report.state_bytes))
        table.add_row(report.graph.key, str(report.nodes), *sizes, f"{report.seconds:.1f}")
    console.print(table)
    console.print(f"peak memory of tracing: {readable_bytes(peak_memory())}")
