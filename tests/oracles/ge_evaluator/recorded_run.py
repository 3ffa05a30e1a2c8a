"""An evaluation of a graph with every value kept, and what would differ if one operator were another."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.oracles.ge_evaluator.attributes import attribute, constant
from tests.oracles.ge_evaluator.evaluate import ALL_RULES, INPUTS, is_control
from tests.oracles.ge_evaluator.operators import Rule


class CannotRun(Exception):
    """No engine would accept the graph with the other operator in it."""


@dataclass(frozen=True)
class Step:
    """An operator that computes: the values it reads by name, and the rule it follows."""

    operator: Any
    kind: str
    reads: tuple[str, ...]
    rule: Rule

    def run(self, rule: Rule, operands: list[Tensor | None]) -> list[Tensor]:
        if self.kind == "ScatterNdUpdate":
            assert operands[0] is not None
            operands = [operands[0].clone(), *operands[1:]]
        results = rule(self.operator, *operands)
        return [results] if isinstance(results, Tensor) else list(results)

    def name(self, place: int) -> str:
        return f"{self.operator.name}:{place}"


class Steps:
    """A graph in the file's order, read once for many runs."""

    def __init__(self, graph: Any) -> None:
        self.inputs = {f"{op.name}:0": attribute(op, "index") for op in graph.op if op.type in INPUTS}
        self.steps: list[Step] = []
        self.readers: dict[str, list[int]] = defaultdict(list)
        held = {f"{op.name}:0": f"{op.name}:0" for op in graph.op if op.type == "RefData"}
        for operator in graph.op:
            reads = tuple(source for source in operator.input if not is_control(source))
            if operator.type == "NetOutput":
                self.outputs = reads
            elif operator.type not in INPUTS:
                rule = _constant if operator.type == "Const" else ALL_RULES[operator.type]
                for name in reads:
                    self.readers[name].append(len(self.steps))
                self.steps.append(Step(operator, operator.type, reads, rule))
            if operator.type == "ScatterNdUpdate":
                [state] = [name for name, holds in held.items() if holds == reads[0]]
                held[state] = f"{operator.name}:0"
        self.left = {value: self.inputs[state] for state, value in held.items()}
        """Of each state that is written, the value that it has in the end, and its index among the inputs."""


def _constant(operator: Any) -> Tensor:
    return constant(operator)


class RecordedRun:
    """The values of one run.

    A write gives a new value here and leaves the old one. That is the same wherever edges make writes wait
    for those who read what was there, as `evaluate`, which writes in place, is there to show.
    """

    def __init__(self, steps: Steps, inputs: Sequence[Tensor]) -> None:
        self._steps = steps
        self._values = {name: inputs[index] for name, index in steps.inputs.items()}
        for step in steps.steps:
            for place, result in enumerate(step.run(step.rule, self._operands(step, {}))):
                self._values[step.name(place)] = result

    def ends(self) -> dict[str, Tensor]:
        """By name: the state that the run leaves, and its outputs."""
        return {name: self._values[name] for name in (*self._steps.left, *self._steps.outputs)}

    def changed_ends(self, place: int, rule: Rule) -> Iterator[tuple[str, Tensor]]:
        """Those of `ends` that differ if step `place` followed another rule, one by one as they are known.

        Raises CannotRun.
        """
        ends = {*self._steps.left, *self._steps.outputs}
        changed: dict[str, Tensor] = {}
        waiting = [place]
        queued = {place}
        while waiting:
            step = self._steps.steps[here := heapq.heappop(waiting)]
            for name, result in self._rerun(step, rule if here == place else step.rule, changed):
                changed[name] = result
                if name in ends:
                    yield name, result
                for reader in self._steps.readers[name]:
                    if reader not in queued:
                        queued.add(reader)
                        heapq.heappush(waiting, reader)

    def _rerun(self, step: Step, rule: Rule, changed: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The results that are not as they were."""
        try:
            results = step.run(rule, self._operands(step, changed))
        except (AssertionError, RuntimeError, IndexError, ValueError) as error:
            raise CannotRun(str(error)) from error
        for place, result in enumerate(results):
            right = self._values[step.name(place)]
            # Types and shapes are inferred when a graph is compiled; one with others is refused there.
            if (result.dtype, result.shape) != (right.dtype, right.shape):
                raise CannotRun(f"{step.operator.name} gives {result.dtype} {list(result.shape)}")
            if not torch.equal(result, right):
                yield step.name(place), result

    def _operands(self, step: Step, changed: Mapping[str, Tensor]) -> list[Tensor | None]:
        return [changed.get(name, self._values[name]) if name else None for name in step.reads]
