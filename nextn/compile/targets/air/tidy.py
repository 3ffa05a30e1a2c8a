"""Removes what TorchAir's converters leave in a graph and would run at every launch.

In a `round` of the demo that is 96 transposed copies of weights, and 699 conversions of a type to itself: a
tenth of its operators. Whether GE's own passes find them cannot be seen without CANN.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from nextn.compile.targets.air.in_place import is_control, operator_of

_TRANSPOSED_INPUTS = {
    "MatMul": {0: "transpose_x1", 1: "transpose_x2"},
    "BatchMatMul": {0: "adj_x1", 1: "adj_x2"},
    "GroupedMatmul": {1: "transpose_weight"},
    "QuantBatchMatmulV3": {1: "transpose_x2"},
}

_SAME_TYPE = frozenset(
    (
        "Abs Add BatchMatMul BroadcastTo ClipByValueV2 ClippedSwiglu ConcatV2 Cos Cumsum Exp FloorDiv "
        "FloorMod GatherElements GatherV2 Identity Log MatMul Minimum Mul Neg RealDiv "
        "ReduceMean ReduceSum Relu Reshape RmsNorm RotaryPositionEmbedding Rsqrt ScatterNdUpdate Sigmoid Sin "
        "SoftmaxV2 SplitV Sqrt Squeeze StridedSliceV2 Sub Transpose Unsqueeze"
    ).split()
)
"""Operators whose output has the type of their first operand."""

_FLOAT, _INT8, _INT32, _INT64 = 0, 2, 3, 9
"""`ge::DataType`."""

_OUTPUT_TYPES = {
    ("MoeGatingTopK", "1"): _INT32,
    ("MoeInitRoutingV3", "1"): _INT32,
    ("MoeInitRoutingV3", "2"): _INT64,
    ("MoeFinalizeRoutingV2", "0"): _FLOAT,
    ("DynamicQuant", "0"): _INT8,
    ("DynamicQuant", "1"): _FLOAT,
}
"""What some outputs are by definition, or as our fused ops use the operator."""

_ENGINE_OF_PROTO = {1: 0, 2: 1, 3: 2, 4: 4, 7: 3, 8: 9, 11: 12, 12: 11, 27: 27}
"""`ge::DataType` of a `ge.proto.DataType`: a `Cast` names its target by the former."""


def tidy(graph: Any) -> None:
    """Changes a GE `GraphDef` in place; its values stay the same."""
    operators = {operator.name: operator for operator in graph.op}
    _fold_transposes(graph, operators)
    _bypass_idle_casts(graph, operators)
    _drop_unread(graph)


def _fold_transposes(graph: Any, operators: Mapping[str, Any]) -> None:
    """A product reads a transposed operand as it lies."""
    for product in graph.op:
        for place, attribute in _TRANSPOSED_INPUTS.get(product.type, {}).items():
            transpose = operators[operator_of(product.input[place])]
            if transpose.type == "Transpose" and _swaps_last_two(operators[operator_of(transpose.input[1])]):
                product.input[place] = transpose.input[0]
                product.attr[attribute].b = not product.attr[attribute].b


def _swaps_last_two(order: Any) -> bool:
    data = order.attr["value"].t.data
    axes = list(struct.unpack(f"<{len(data) // 8}q", data))
    last = len(axes) - 1
    return order.type == "Const" and axes == [*range(last - 1), last, last - 1]


def _bypass_idle_casts(graph: Any, operators: Mapping[str, Any]) -> None:
    """Casts of a type to itself, also by way of a wider integer."""
    type_of = _types(operators)
    instead = {}
    for operator in graph.op:
        if operator.type != "Cast":
            continue
        source, target = operator.input[0], operator.attr["dst_type"].i
        inner = operators[operator_of(source)]
        if type_of(source) == target:
            instead[f"{operator.name}:0"] = source
        elif target == _INT32 and inner.type == "Cast" and type_of(source) == _INT64:
            if type_of(inner.input[0]) == _INT32:
                instead[f"{operator.name}:0"] = inner.input[0]
    for operator in graph.op:
        for place, source in enumerate(operator.input):
            while source in instead:
                source = instead[source]
            operator.input[place] = source


def _types(operators: Mapping[str, Any]) -> Callable[[str], int | None]:
    """A function of a value's `ge::DataType`, None where it is not known."""
    known: dict[str, int | None] = {}

    def type_of(value: str) -> int | None:
        chain = []
        while value not in known:
            operator = operators[operator_of(value)]
            if operator.type in ("Data", "RefData", "Const"):
                known[value] = _ENGINE_OF_PROTO.get(operator.output_desc[0].dtype)
            elif operator.type == "Cast":
                known[value] = operator.attr["dst_type"].i
            elif (kind := _OUTPUT_TYPES.get((operator.type, value.rpartition(":")[2]))) is not None:
                known[value] = kind
            elif operator.type in _SAME_TYPE:
                chain.append(value)
                value = next(source for source in operator.input if not is_control(source))
            else:
                known[value] = None
        known.update(dict.fromkeys(chain, known[value]))
        return known[value]

    return type_of


def _drop_unread(graph: Any) -> None:
    """Removes operators that nothing reads; inputs stay, for they are bound by index."""
    readers: dict[str, int] = {}
    operators = {operator.name: operator for operator in graph.op}
    for operator in graph.op:
        for source in filter(None, operator.input):
            readers[operator_of(source)] = readers.get(operator_of(source), 0) + 1
    kept = {"Data", "RefData", "NetOutput"}
    waiting = [
        name for name, operator in operators.items() if operator.type not in kept and name not in readers
    ]
    dropped = set()
    while waiting:
        dropped.add(name := waiting.pop())
        for source in {operator_of(source) for source in operators[name].input if source}:
            readers[source] -= sum(operator_of(other) == source for other in operators[name].input if other)
            if not readers[source] and operators[source].type not in kept:
                waiting.append(source)
    left = [operator for operator in graph.op if operator.name not in dropped]
    copies = [type(operator)() for operator in left]
    for copy, operator in zip(copies, left, strict=True):
        copy.CopyFrom(operator)
    del graph.op[:]
    graph.op.extend(copies)
