"""The functional form of a graph, rewritten into the operators that Ascend's graph engine should see.

State is written in place and read as rows; everything lives on the device; and a graph engine keeps nothing
that leads to no output, so the rows of one small block are returned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from nextn.compile.build.functional import ROWS_WRITE, FunctionalGraph
from nextn.compile.targets.air.returned_rows import returned_block


def device_form(functional: FunctionalGraph, slots: str) -> fx.GraphModule:
    """A module of the same arguments on device `npu` that writes state in place.

    It returns the rows of `slots` of its `returned_block`, int64 `[B, F]`, as they are
    after every write. Needs torch_npu, whose operators it names.

    Args:
        slots: name of the input tensor that holds the graph's slots.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in functional.graph.nodes:
        if node.op == "output":
            break
        if node.target is ROWS_WRITE:
            copies[node] = _write(graph, node, copies)
        elif node.target is torch.ops.aten.index.Tensor:
            copies[node] = _read(graph, node, copies)
        else:
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
            if "device" in copies[node].kwargs:
                copies[node].kwargs = {**copies[node].kwargs, "device": torch.device("npu")}
    results, arguments = functional.results(), functional.arguments()
    rows = graph.call_function(
        torch.ops.aten.index_select.default,
        (copies[results[returned_block(results)]], 0, copies[arguments[slots]]),
    )
    graph.output((rows,))
    graph.lint()
    return fx.GraphModule({}, graph)


def _write(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """`index_put` by rows as the scatter that changes its first argument."""
    arguments: Any = node.args
    buffer, (index,), rows = arguments[:3]
    places = graph.call_function(torch.ops.aten.unsqueeze.default, (copies[index], -1))
    return graph.call_function(
        torch.ops.npu.npu_scatter_nd_update_.default, (copies[buffer], places, copies[rows])
    )


def _read(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """Rows by index as a gather, which the vector cores have; general indexing they have not."""
    arguments: Any = node.args
    buffer, (index,) = arguments
    shape = index.meta["val"].shape
    flat = graph.call_function(torch.ops.aten.reshape.default, (copies[index], [-1]))
    rows = graph.call_function(torch.ops.aten.index_select.default, (copies[buffer], 0, flat))
    width = buffer.meta["val"].shape[1:]
    return graph.call_function(torch.ops.aten.reshape.default, (rows, [*shape, *width]))
