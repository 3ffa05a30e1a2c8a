"""What cannot be a GE graph with state in place is refused by name, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchair._ge_concrete_graph.ge_ir_pb2 import GraphDef

from nextn.compile.targets.air.ge_program import convert
from nextn.compile.targets.air.in_place import order_in_place_writes
from nextn.runtime.contract.errors import ExecutionError


def call(target: Callable[..., Any], *arguments: object) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(target, (x, *arguments)),))
    return torch.fx.GraphModule({}, graph)


def inputs() -> list[torch.Tensor]:
    with torch._subclasses.FakeTensorMode():
        return [torch.empty(4, 8, device="npu")]


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        pytest.param(torch.ops.aten.amax.default, ([1],), id="its converter is a placeholder"),
        pytest.param(torch.ops.aten.fmod.Scalar, (2.0,), id="its converter says not supported"),
        pytest.param(torch.ops.aten.selu.default, (), id="it has no converter"),
    ],
)
def test_operators_without_a_converter(target: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    with pytest.raises(ExecutionError, match=r"graph round\.b1 has an operator without a converter to GE IR"):
        convert("round.b1", call(target, *arguments), inputs())


def test_an_operator_with_one_converts() -> None:
    graph = convert("round.b1", call(torch.ops.aten.exp.default), inputs())
    assert [op.type for op in graph.op] == ["Data", "Exp", "NetOutput"]


def graph_of(*operators: tuple[str, str, tuple[str, ...]]) -> Any:
    """A GE graph of `(name, type, sources)`; inputs are numbered as they come."""
    graph = GraphDef()
    for name, kind, sources in operators:
        op = graph.op.add()
        op.name, op.type = name, kind
        op.input.extend(sources)
        if kind == "Data":
            op.attr["index"].i = sum(other.type == "Data" for other in graph.op) - 1
    return graph


WRITE = ("write", "ScatterNdUpdate", ("ring:0", "index:0", "rows:0"))
INPUTS = (("ring", "Data", ()), ("index", "Data", ()), ("rows", "Data", ()))
NAMES = {0: "ring", 1: "index", 2: "rows"}


def test_a_write_waits_for_readers_of_the_value_before_also_through_views() -> None:
    graph = graph_of(
        *INPUTS,
        ("seen", "Reshape", ("ring:0", "index:0")),
        ("read", "GatherV2", ("seen:0", "index:0")),
        WRITE,
        ("later", "GatherV2", ("write:0", "index:0")),
    )
    order_in_place_writes(graph, NAMES, ["ring"])
    operators = {op.name: op for op in graph.op}
    assert operators["ring"].type == "RefData" and operators["index"].type == "Data"
    assert set(operators["write"].input[3:]) == {"seen:-1", "read:-1"}


def test_reading_the_old_value_after_the_write() -> None:
    graph = graph_of(*INPUTS, WRITE, ("both", "Add", ("ring:0", "write:0")))
    with pytest.raises(ExecutionError, match="reads an old value of its state after writing it"):
        order_in_place_writes(graph, NAMES, ["ring"])


def test_a_write_to_something_that_is_no_state() -> None:
    graph = graph_of(*INPUTS, WRITE)
    with pytest.raises(ExecutionError, match="in-place write targets no state buffer"):
        order_in_place_writes(graph, NAMES, [])
