"""The comparison with the eager modules notices a graph with one wrong operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from nextn.compile.npu.ge_program import GeProgram
from nextn.graphs.driver import Request
from tests.npu.sessions import Converted, bound, requests
from tests.oracles.ge_evaluator import evaluate

OTHER_TYPE = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "Add",
    "RealDiv": "Mul",
    "FloorMod": "FloorDiv",
    "FloorDiv": "FloorMod",
    "Less": "LessEqual",
    "LessEqual": "Less",
    "Greater": "GreaterEqual",
    "GreaterEqual": "Greater",
    "Equal": "NotEqual",
    "NotEqual": "Equal",
    "LogicalAnd": "LogicalOr",
    "LogicalOr": "LogicalAnd",
    "Cos": "Sin",
    "Sin": "Cos",
    "Rsqrt": "Sqrt",
    "Sqrt": "Identity",
    "Neg": "Identity",
    "Abs": "Identity",
    "Sigmoid": "Relu",
}

EXCHANGED_OPERANDS = {"SelectV2": (1, 2), "RotaryPositionEmbedding": (1, 2)}

OTHER_ATTRIBUTE = {
    "RmsNorm": ("epsilon", 0.1),
    "ClippedSwiglu": ("alpha", 1.1),
    "MoeGatingTopK": ("routed_scaling_factor", 1.0),
}

FUSED = {"RotaryPositionEmbedding", *OTHER_ATTRIBUTE}
"""Few of a graph's operators: all are changed."""

NOTICED = 1e-5
"""What the comparison of rounds allows."""

MATTERS = 1e-4
"""A wrong operator that changes no state by more, in any of ten launches of other requests, is no fault."""

OTHER_LAUNCHES = 10


def other_requests() -> list[Request]:
    return [
        Request([2, 7, 1, 8, 2, 8], 18, seed=3, temperature=0.5),
        Request([11, 12, 13] * 7, 18, (200,), seed=4, temperature=1.0),
        Request([9], 9),
    ]


@dataclass(frozen=True)
class Launch:
    """What a graph found, and what the eager module made of it."""

    before: list[Tensor]
    after: list[Tensor]


def record(converted: Converted, key: tuple[str, int], asked: list[Request]) -> list[Launch]:
    """Every launch of one graph in an eager session of separate phases."""
    session = converted.eager(phases=True)
    program, run = converted.programs[key], session.graphs[key]
    model = run.model
    launches: list[Launch] = []

    def launch() -> None:
        before = [tensor.clone() for tensor in bound(program, model, session.state)]
        run()
        launches.append(Launch(before, [tensor.clone() for tensor in bound(program, model, session.state)]))

    session.graphs = {**session.graphs, key: launch}
    session.generate(asked)
    return launches


def largest_effect(program: GeProgram, launch: Launch) -> float:
    """Between the state a program leaves and the state the eager module left; inf if it cannot run."""
    inputs = [tensor.clone() for tensor in launch.before]
    try:
        evaluate(program.graph, inputs)
    except (AssertionError, RuntimeError, IndexError, ValueError):
        return float("inf")
    pairs = zip(inputs, launch.after, strict=True)
    found = max(float((one.double() - other.double()).abs().max()) for one, other in pairs)
    return float("inf") if found != found else found


def mutants(program: GeProgram, step: int) -> Iterator[str]:
    """Changes one operator after another, every `step`-th of each type, and changes it back."""
    seen: Counter[str] = Counter()
    for operator in program.graph.op:
        kind = operator.type
        if kind not in {*OTHER_TYPE, *EXCHANGED_OPERANDS, *OTHER_ATTRIBUTE}:
            continue
        seen[kind] += 1
        if seen[kind] % step and kind not in FUSED:
            continue
        right = type(operator)()
        right.CopyFrom(operator)
        _change(operator)
        yield kind
        operator.CopyFrom(right)


def _change(operator: Any) -> None:
    kind = operator.type
    if kind in EXCHANGED_OPERANDS:
        one, other = EXCHANGED_OPERANDS[kind]
        operator.input[one], operator.input[other] = operator.input[other], operator.input[one]
    elif kind in OTHER_ATTRIBUTE:
        name, value = OTHER_ATTRIBUTE[kind]
        assert operator.attr[name].f != value
        operator.attr[name].f = value
    else:
        operator.type = OTHER_TYPE[kind]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("accept", 1),
        ("draft_step", 9),
        pytest.param("draft_step", 1, marks=pytest.mark.full),
        pytest.param("verify", 10, marks=pytest.mark.full),
    ],
)
def test_wrong_operators_are_noticed(converted: Converted, name: str, step: int) -> None:
    program = converted.programs[name, 2]
    compared = record(converted, (name, 2), requests())
    others = record(converted, (name, 2), other_requests())[:OTHER_LAUNCHES]
    assert len(others) == OTHER_LAUNCHES
    assert max(largest_effect(program, launch) for launch in compared + others) <= NOTICED
    noticed, survivors = 0, Counter[str]()
    for kind in mutants(program, step):
        if any(largest_effect(program, launch) > NOTICED for launch in compared):
            noticed += 1
        elif any(largest_effect(program, launch) > MATTERS for launch in others):
            survivors[kind] += 1
    print(f"{name}: {noticed} noticed, survivors {dict(survivors)}")
    assert noticed >= 10
    assert noticed >= 0.95 * (noticed + survivors.total()), survivors
    assert max(largest_effect(program, launch) for launch in compared) <= NOTICED, "all is changed back"
