"""One traced graph to one `.pt2` file: an exported program over aten operators, without any value.

Whoever has torch can load it, and bind it to tensors of any device; nothing of ours is needed for that. It is
the traced program itself, operator for operator and in its order, so that row writes happen in place.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._export.verifier import TrainingIRVerifier
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from nextn.compile.build.trace import TracedGraph
from nextn.compile.targets.fused_op import NO_FUNCTIONS, Functions
from nextn.graphs.ops.operator import OPERATORS

_WRITE = torch.ops.aten.index_put_.default

_ASSERTION = torch.ops.aten._assert_tensor_metadata.default
"""Holds for static shapes by construction, and names a device that a program may be moved from."""


def write_exported_program(traced: TracedGraph, output: Path, fused: Functions = NO_FUNCTIONS) -> None:
    """Writes `output`: a program whose arguments are the graph's tensors, in the order of its spec.

    It changes state in place, and returns the tensors it changed: a program must return something.

    Args:
        fused: what operators of ours become that are not decomposed to plain aten; called with fake tensors.
    """
    torch.export.save(_program(_with_arguments(traced, {**OPERATORS, **fused})), output)


def _with_arguments(traced: TracedGraph, functions: Functions) -> fx.Graph:
    """The traced graph with its tensors as arguments, and in place of our operators what they become."""
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    lifted = {
        str(argument.target).partition(".")[2]: argument.arg.name
        for argument in traced.program.graph_signature.input_specs
    }
    placeholders = {node.name: node for node in traced.program.graph.find_nodes(op="placeholder")}
    for spec in traced.spec.tensors:
        source = placeholders[lifted[spec.name]]
        copies[source] = _like(source, graph.placeholder(spec.name.replace(".", "_")))
    written: dict[fx.Node, fx.Node] = {}
    for node in traced.program.graph.nodes:
        if node.op in ("placeholder", "output") or node.target is _ASSERTION:
            continue
        first: Any = node.args[0] if node.args else None
        if node.target in functions:
            copies[node] = _inlined(graph, node, copies, functions)
        elif node.target is operator.getitem and isinstance(copies[first], tuple):
            copies[node] = copies[first][node.args[1]]
        else:
            copies[node] = _like(node, graph.node_copy(node, lambda argument: copies[argument]))
        if node.target is _WRITE:
            written[_buffer(copies[node])] = copies[node]
    graph.output(tuple(written.values()))
    graph.eliminate_dead_code()
    graph.lint()
    return graph


def _like(source: fx.Node, copy: fx.Node) -> fx.Node:
    """Gives a copy the value of its source, and not where in which source file it came from."""
    copy.meta = {"val": source.meta["val"]}
    return copy


def _inlined(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, Any], functions: Functions) -> Any:
    """What an operator of ours decomposes into, in place of its call; a tuple of nodes if it has results."""
    sources = [argument for argument in node.args if isinstance(argument, fx.Node)]
    values = [source.meta["val"] for source in sources]
    function = functions[node.target]  # type: ignore[index]

    def call(*tensors: torch.Tensor) -> Any:
        given = dict(zip(sources, tensors, strict=True))
        return function(*(given.get(one, one) for one in node.args), **node.kwargs)  # type: ignore[arg-type]

    with values[0].fake_mode:  # the mode of the whole program, also for what the function makes from nothing
        plain = make_fx(call, decomposition_table=functions, pre_dispatch=True)(*values)
    inner: dict[fx.Node, Any] = dict(
        zip(plain.graph.find_nodes(op="placeholder"), (copies[one] for one in sources), strict=True)
    )
    for step in plain.graph.nodes:
        if step.op not in ("placeholder", "output"):
            inner[step] = _like(step, graph.node_copy(step, lambda argument: inner[argument]))
    return fx.node.map_arg(plain.graph.output_node().args[0], lambda result: inner[result])


def _buffer(write: fx.Node) -> fx.Node:
    """The argument that a chain of writes changes."""
    while write.op == "call_function":
        assert write.target is _WRITE, "writes go to arguments"
        changed: Any = write.args[0]
        write = changed
    return write


def _program(graph: fx.Graph) -> ExportedProgram:
    arguments = graph.find_nodes(op="placeholder")
    results: Sequence[fx.Node] = graph.output_node().args[0]  # type: ignore[assignment]
    inputs = [InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node in arguments]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results]
    calling = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_structure((tuple(range(len(arguments))), {})),
        out_spec=pytree.tree_structure(tuple(range(len(results)))),
    )
    return ExportedProgram(
        root=torch.nn.Module(),
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", calling)],
        verifiers=[TrainingIRVerifier],
    )
