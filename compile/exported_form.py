"""One traced graph to one `.pt2` file: an exported program over aten operators alone, without any value.

Whoever has torch can load it, and bind it to tensors of any device; nothing of ours is needed for that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

from nextn.compile.functional import ROWS_WRITE, FunctionalGraph, functionalize
from nextn.compile.trace import TracedGraph
from nextn.runtime.contract.errors import ExecutionError

_WRITE_IN_PLACE = torch.ops.aten.index_put_.default


def write_exported_program(traced: TracedGraph, output: Path) -> None:
    """Writes `output`: a program whose arguments are the graph's tensors, in the order of its spec.

    It changes state in place and returns the tensors it changed. Raises ExecutionError if a graph reads an
    old value of its state after writing it.
    """
    functional = functionalize(traced, core=False)
    module = in_place_form(traced.spec.key, functional)
    torch.export.save(_without_values(module, functional), output)


def in_place_form(key: str, functional: FunctionalGraph) -> fx.GraphModule:
    """The module of the same arguments in which every row write changes its first argument.

    Args:
        key: the graph's name, for messages.

    Raises ExecutionError if an old value is read after a write, which in place it would no longer be.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    overwritten: set[fx.Node] = set()
    for node in functional.graph.nodes:
        if node.op == "output":
            break
        if late := overwritten.intersection(node.all_input_nodes):
            raise ExecutionError(
                f"graph {key} reads an old value of its state after writing it", key=min(map(str, late))
            )
        if node.target is ROWS_WRITE:
            arguments = fx.node.map_arg(node.args, lambda argument: copies[argument])
            copies[node] = graph.call_function(_WRITE_IN_PLACE, arguments)
            overwritten.add(node.args[0])
        else:
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
    results = functional.results()
    graph.output(tuple(copies[results[name]] for name in functional.written))
    graph.lint()
    return fx.GraphModule({}, graph)


def _without_values(module: fx.GraphModule, functional: FunctionalGraph) -> ExportedProgram:
    """The program of `module`, with neither example arguments nor a trace of the machine it was made on."""
    with FakeTensorMode():
        arguments = tuple(
            torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in functional.tensors
        )
    with torch.no_grad():
        program: Any = torch.export.export(module, arguments, strict=False)
    program._example_inputs = None
    for node in program.graph.nodes:
        node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    return program
