"""A traced graph as a function: every tensor it binds is an argument, every in-place write a new value.

Targets without mutable state, or with rules of their own for it, start from this graph. Our own operators are
decomposed, or become fused ops of the target, and composite operators of aten are decomposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind

from nextn.compile.build.trace import TracedGraph
from nextn.compile.targets.fused_op import NO_FUNCTIONS, Functions
from nextn.graphs.ops.operator import OPERATORS
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.graph_spec import TensorSpec

ROWS_WRITE = torch.ops.aten.index_put.default
"""What `write_rows` becomes: `(buffer, (index [N],), rows [N, D]) -> buffer`."""

_ASSERTION = torch.ops.aten._assert_tensor_metadata.default
"""Holds for static shapes by construction, and names a device that a target may change."""


@dataclass(frozen=True)
class FunctionalGraph:
    """`graph` takes `tensors` in their order and returns the last values of those named in `written`."""

    graph: fx.Graph
    tensors: tuple[TensorSpec, ...]
    written: tuple[str, ...]

    def arguments(self) -> dict[str, fx.Node]:
        """Placeholder nodes by tensor name."""
        placeholders = self.graph.find_nodes(op="placeholder")
        return {spec.name: node for spec, node in zip(self.tensors, placeholders, strict=True)}

    def results(self) -> dict[str, fx.Node]:
        """The node that holds the last value of every written tensor."""
        values: Any = self.graph.output_node().args[0]
        return dict(zip(self.written, values, strict=True))


def functionalize(traced: TracedGraph, fused: Functions = NO_FUNCTIONS) -> FunctionalGraph:
    """A traced graph as a function; its contract and its values are the same.

    Args:
        fused: what operators of ours become that are not decomposed to plain aten; called with fake tensors.

    Raises ExecutionError if something other than a row write changes a buffer.
    """
    table: dict[Any, Any] = dict(torch.export.default_decompositions())
    program = traced.program.run_decompositions({**table, **OPERATORS, **fused})
    graph = fx.Graph()
    placeholders = _lift(program.graph_signature, traced.spec.tensors)
    copies: dict[fx.Node, fx.Node] = {}
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in traced.spec.tensors:
        source = nodes[placeholders[spec.name]]
        copies[source] = graph.placeholder(spec.name.replace(".", "_"))
        copies[source].meta = dict(source.meta)
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output") or node.target is _ASSERTION:
            continue
        copies[node] = graph.node_copy(node, lambda argument: copies[argument])
    written = _written(program.graph_signature)
    last = {node.name: copies.get(node) for node in program.graph.nodes}
    graph.output(tuple(last[value] for value in written.values()))
    graph.eliminate_dead_code()
    graph.lint()
    functional = FunctionalGraph(graph, traced.spec.tensors, tuple(written))
    _check_writes(traced.spec.key, functional)
    return functional


def _lift(signature: ExportGraphSignature, tensors: tuple[TensorSpec, ...]) -> Mapping[str, str]:
    """Placeholder names by tensor name."""
    lifted = {}
    for argument in signature.input_specs:
        assert argument.kind in (InputKind.BUFFER, InputKind.PARAMETER) and argument.target is not None
        lifted[argument.target.partition(".")[2]] = argument.arg.name
    assert all(spec.name in lifted for spec in tensors)
    return lifted


def _written(signature: ExportGraphSignature) -> dict[str, str]:
    """The node of the last value of each changed buffer, by tensor name."""
    written = {}
    for result in signature.output_specs:
        assert result.kind == OutputKind.BUFFER_MUTATION and result.target is not None
        written[result.target.partition(".")[2]] = result.arg.name
    return written


def _check_writes(key: str, functional: FunctionalGraph) -> None:
    """Each result is reached from its argument through row writes alone, so that it can be done in place."""
    arguments = functional.arguments()
    for name, node in functional.results().items():
        value: Any = node
        while value is not arguments[name]:
            if value.op != "call_function" or value.target is not ROWS_WRITE:
                raise ExecutionError(
                    f"graph {key} changes a buffer by something else than row writes",
                    key=name,
                    expected=str(ROWS_WRITE),
                    found=value.target,
                )
            value = value.args[0]
