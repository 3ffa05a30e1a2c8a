"""Evaluates a GE graph in any order its edges allow, with state really written in place."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from tests.oracles.ge_dtypes import PROTO_DTYPES
from tests.oracles.ge_evaluator.attributes import attribute, constant
from tests.oracles.ge_evaluator.fused_operators import FUSED_RULES
from tests.oracles.ge_evaluator.operators import RULES

INPUTS = ("Data", "RefData")
ALL_RULES = {**RULES, **FUSED_RULES}

Order = int | Literal["file", "writes first"]
"""The file's order, each write as early as its edges allow, or by a seed any order they allow."""


def evaluate(graph: Any, inputs: Sequence[Tensor], order: Order = "file") -> list[Tensor]:
    """The outputs of a graph; inputs that are `RefData` are changed in place.

    Args:
        graph: a GE `GraphDef`.
        inputs: by index, of the declared types and shapes.
        order: one of the orders that data and control edges allow.

    Raises NotImplementedError for operators without a rule, and AssertionError for a graph that no engine
    would accept: operands of several types, an index out of range, a write to something that is no state.
    """
    unknown = {operator.type for operator in graph.op} - set(ALL_RULES) - {"Const", "NetOutput", *INPUTS}
    if unknown:
        raise NotImplementedError(f"GE operators without a rule: {sorted(unknown)}")
    memory: dict[str, Tensor] = {}
    read_only = set()
    outputs: list[Tensor] = []
    for operator in _ordered(graph, order):
        operands = [memory[source] if source else None for source in operator.input if not is_control(source)]
        if operator.type == "NetOutput":
            outputs = [operand for operand in operands if operand is not None]
        elif operator.type in INPUTS:
            memory[f"{operator.name}:0"] = tensor = _input(operator, inputs)
            if operator.type == "Data":
                read_only.add(tensor.untyped_storage().data_ptr())
        elif operator.type == "Const":
            memory[f"{operator.name}:0"] = constant(operator)
        else:
            if operator.type == "ScatterNdUpdate":
                assert operands[0].untyped_storage().data_ptr() not in read_only, operator.name
            results = ALL_RULES[operator.type](operator, *operands)
            for place, result in enumerate([results] if isinstance(results, Tensor) else results):
                memory[f"{operator.name}:{place}"] = result
    return outputs


def _input(operator: Any, inputs: Sequence[Tensor]) -> Tensor:
    tensor = inputs[attribute(operator, "index")]
    described = operator.output_desc[0]
    found = (tensor.dtype, list(tensor.shape))
    assert found == (PROTO_DTYPES[described.dtype], list(described.shape.dim)), (operator.name, found)
    return tensor


def is_control(source: str) -> bool:
    return source.endswith(":-1")


def _ordered(graph: Any, order: Order) -> list[Any]:
    """Operators so that every one comes after those it has an edge from."""
    if order == "file":
        return list(graph.op)
    operators = {operator.name: operator for operator in graph.op}
    needs = {name: [s.rpartition(":")[0] for s in op.input if s] for name, op in operators.items()}
    names = _writes_first(operators, needs) if order == "writes first" else _shuffled(needs, order)
    assert len(names) == len(operators), "the graph has a cycle"
    return [operators[name] for name in names]


def _shuffled(needs: Mapping[str, Sequence[str]], seed: int) -> list[str]:
    waits = {name: set(sources) for name, sources in needs.items()}
    followers: dict[str, list[str]] = defaultdict(list)
    for name, sources in waits.items():
        for source in sources:
            followers[source].append(name)
    choose = random.Random(seed)
    ready = [name for name, sources in waits.items() if not sources]
    names = []
    while ready:
        place = choose.randrange(len(ready))
        ready[place], ready[-1] = ready[-1], ready[place]
        names.append(name := ready.pop())
        for follower in followers[name]:
            waits[follower].discard(name)
            if not waits[follower]:
                ready.append(follower)
    return names


def _writes_first(operators: Mapping[str, Any], needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Each write as soon as what it needs is there; whatever it does not wait for comes later."""
    writes = [name for name, operator in operators.items() if operator.type == "ScatterNdUpdate"]
    names: dict[str, None] = {}
    for wanted in [*writes, *operators]:
        path = [wanted]
        while path:
            missing = [source for source in needs[path[-1]] if source not in names]
            if missing and len(path) <= len(operators):
                path.append(missing[0])
            else:
                names[path.pop()] = None
    return list(names)
