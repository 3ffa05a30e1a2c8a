"""In-place state in GE IR: `RefData` inputs, and the order of reads and writes made explicit.

TorchAir's own way keeps a write in place only where nothing else reads the buffer; otherwise it copies the
whole buffer before and after. Every cache of ours is read before it is written, in every graph. Here a write
goes to the buffer itself, and control edges let it wait for all who read what was there before; who reads
afterwards takes the write's output, which is the same memory.

GE IR writes an edge as `operator:output`, output -1 for a control edge, nothing for an unfed input.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from nextn.compile.targets.air.om_interface import input_name
from nextn.runtime.contract.errors import ExecutionError

WRITE = "ScatterNdUpdate"

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Bitcast", "Identity", "ExpandDims"})
"""Operators whose output may be the memory of their first input: who reads it reads that."""


def order_in_place_writes(graph: Any, names: Mapping[int, str], written: Iterable[str]) -> None:
    """Makes inputs that are written `RefData`, and every write wait for the readers of the value before.

    Args:
        graph: a GE `GraphDef`; changed in place.
        names: tensor name of every graph input by index.
        written: the tensors that the graph writes.

    Raises ExecutionError if a reader of an old value needs the new one, or a write targets no state buffer.
    """
    _name_inputs(graph, names)
    operators = {operator.name: operator for operator in graph.op}
    readers = _readers(graph)
    state = {input_name(name) for name in written}
    for name in state:
        operators[name].type = "RefData"
    for operator in graph.op:
        if operator.type != WRITE:
            continue
        if _origin(operator, operators) not in state:
            raise ExecutionError("in-place write targets no state buffer", key=operator.name)
        before = operator.input[_data_inputs(operator)[0]]
        for reader in _readers_of_memory(before, readers, operators):
            edge = f"{reader}:-1"
            if reader != operator.name and edge not in operator.input:
                operator.input.append(edge)
    _check_acyclic(graph)


def _name_inputs(graph: Any, names: Mapping[int, str]) -> None:
    """Gives inputs their tensor's name: those TorchAir chooses differ from run to run."""
    renamed = {}
    for operator in graph.op:
        if operator.type == "Data":
            old, operator.name = operator.name, input_name(names[operator.attr["index"].i])
            renamed[f"{old}:0"] = f"{operator.name}:0"
    assert len(set(renamed.values())) == len(renamed), "two tensors share an input name"
    for operator in graph.op:
        operator.input[:] = [renamed.get(source, source) for source in operator.input]


def _readers(graph: Any) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = defaultdict(list)
    for operator in graph.op:
        for source in operator.input:
            readers[source].append(operator.name)
    return readers


def _data_inputs(operator: Any) -> list[int]:
    return [place for place, source in enumerate(operator.input) if not is_control(source)]


def _origin(operator: Any, operators: Mapping[str, Any]) -> str:
    """The operator a chain of writes starts from."""
    while operator.type == WRITE:
        operator = operators[operator_of(operator.input[_data_inputs(operator)[0]])]
    return str(operator.name)


def _readers_of_memory(
    value: str, readers: Mapping[str, list[str]], operators: Mapping[str, Any]
) -> list[str]:
    """Operators that read `value` or a view of it."""
    found: list[str] = []
    waiting = deque([value])
    while waiting:
        for reader in readers[waiting.popleft()]:
            if reader not in found:
                found.append(reader)
                if operators[reader].type in VIEWS:
                    waiting.append(f"{reader}:0")
    return found


def _check_acyclic(graph: Any) -> None:
    # An empty source is an optional input that is not fed.
    sources = {
        operator.name: [operator_of(source) for source in operator.input if source] for operator in graph.op
    }
    try:
        TopologicalSorter(sources).prepare()
    except CycleError as error:
        raise ExecutionError(
            "a graph reads an old value of its state after writing it", key=min(error.args[1])
        ) from error


def operator_of(source: str) -> str:
    """The name of the operator that an input comes from."""
    return source.rpartition(":")[0]


def is_control(source: str) -> bool:
    """Whether an input only orders, and carries no value."""
    return source.endswith(":-1")
