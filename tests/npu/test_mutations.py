"""The comparison with the eager modules notices a graph with one wrong operator."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nextn.graphs.eager_session import EagerRequest, GraphKey
from nextn.graphs.ops.topk_entries import COUNTING_LIMIT
from nextn.graphs.session_shape import SessionShape
from nextn.weights import Checkpoint
from tests.npu.launches import Launch, record
from tests.npu.sessions import Converted, convert_plain, difference, requests
from tests.npu.test_int8_weights import convert as convert_int8
from tests.npu.wrong_operators import WITHOUT_FAULT, WRONG
from tests.oracles.ge_evaluator import evaluate
from tests.oracles.ge_evaluator.operators import RULES, Rule
from tests.oracles.ge_evaluator.recorded_run import CannotRun, RecordedRun, Steps

NOTICED = 1e-5
"""What the comparison of rounds allows."""

MATTERS = 1e-4
"""A wrong operator that changes no state or output by more, in any of ten launches, is no fault."""


def other_requests() -> list[EagerRequest]:
    """Long enough to be past a C128 block, and enough for ten launches of each graph."""
    lengths = (130, 6, 21, 1, 40, 3, 17, 9, 2, 33, 5, 12)
    return [
        EagerRequest(
            [(7 * i + j * j) % 95 + 2 for j in range(length)], 9, (200,), seed=i, temperature=i % 3 / 2
        )
        for i, length in enumerate(lengths)
    ]


def spread(launches: Sequence[Launch], count: int) -> list[Launch]:
    return [launches[i * len(launches) // count] for i in range(count)]


@dataclass(frozen=True)
class Comparison:
    """One launch as the program runs it, and the ends it should have.

    State is the eager module's. The output is the program's own: that it is rows of state is shown elsewhere.
    """

    run: RecordedRun
    ends: Mapping[str, Tensor]

    @classmethod
    def of(cls, steps: Steps, launch: Launch) -> Comparison:
        run = RecordedRun(steps, launch.before)
        expected = {name: launch.after[index] for name, index in steps.left.items()}
        return cls(run, run.ends() | expected)

    def effect(self) -> float:
        """Of the program as it is."""
        return max(difference(end, self.ends[name]) for name, end in self.run.ends().items())

    def differs(self, place: int, rule: Rule, limit: float) -> bool:
        """By more than `limit` at any end, with another rule at one step. Raises CannotRun."""
        ends = self.run.changed_ends(place, rule)
        return any(difference(end, self.ends[name]) > limit for name, end in ends)


@dataclass
class Sweep:
    """What became of every mutant, by kind and fault."""

    noticed: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    harmless: Counter[str] = field(default_factory=Counter)
    cannot_run: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        survivors = ", ".join(f"{fault} {count}" for fault, count in sorted(self.survived.items()))
        return (
            f"{self.noticed.total()} noticed, {self.survived.total()} survived ({survivors or 'none'}), "
            f"{self.harmless.total()} without effect, {self.cannot_run.total()} cannot run"
        )


def mutants(steps: Steps) -> Iterator[tuple[int, str, Rule]]:
    """Place, fault and rule of each."""
    for place, step in enumerate(steps.steps):
        for what, wrong in WRONG.get(step.kind, {}).items():
            yield place, f"{step.kind}: {what}", wrong(step.rule)


def sweep(steps: Steps, ten: list[Comparison], compared: list[Comparison]) -> Sweep:
    found = Sweep()
    for place, fault, rule in mutants(steps):
        try:
            if not _any_differs(ten, place, rule, MATTERS):
                found.harmless[fault] += 1
            elif _any_differs(compared, place, rule, NOTICED):
                found.noticed[fault] += 1
            else:
                found.survived[fault] += 1
        except CannotRun:
            found.cannot_run[fault] += 1
    return found


def _any_differs(launches: list[Comparison], place: int, rule: Rule, limit: float) -> bool:
    """Tries first what showed the last one."""
    for number, launch in enumerate(launches):
        if launch.differs(place, rule, limit):
            launches.insert(0, launches.pop(number))
            return True
    return False


def sweep_graph(converted: Converted, key: GraphKey) -> Sweep:
    """Every mutant of one graph; fails if too few of those that matter are noticed."""
    steps = Steps(converted.programs[key].graph)
    ten = spread(record(converted, key, other_requests()), 10)
    others = [Comparison.of(steps, launch) for launch in ten]
    compared = [Comparison.of(steps, launch) for launch in record(converted, key, requests())]
    assert max(launch.effect() for launch in compared) <= NOTICED
    assert max(launch.effect() for launch in others) <= MATTERS / 5, "far below what matters"
    found = sweep(steps, others, compared)
    print(f"{key[0]}: {found}")
    assert found.noticed.total() >= 10
    assert found.noticed.total() >= 0.98 * (found.noticed + found.survived).total(), found
    return found


def full(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.full)


@pytest.mark.parametrize(
    "name",
    ["accept", "draft_extend", "draft_step", *map(full, ("prefill", "seed", "decode", "verify", "round"))],
)
def test_wrong_operators_are_noticed(converted: Converted, name: str) -> None:
    [key] = [key for key in converted.programs if key[0] == name]
    sweep_graph(converted, key)


@pytest.mark.full
def test_in_products_of_int8(tmp_path: Path) -> None:
    key = ("decode", 2)
    found = sweep_graph(convert_int8(tmp_path, "window_only", "bfloat16", 0, [key]), key)
    kinds = {fault.partition(":")[0] for fault in found.noticed}
    assert {"DynamicQuant", "GroupedMatmul", "QuantBatchMatmulV3"} <= kinds


@pytest.mark.full
def test_in_a_selection_of_many_entries(quick_checkpoint: Path) -> None:
    """So many that the graph sorts them."""
    checkpoint, key = Checkpoint.open(quick_checkpoint), ("verify", 2)
    length = 4 * COUNTING_LIMIT + 128
    shape = SessionShape(
        checkpoint.config, num_steps=2, batch_sizes=(2,), max_seq_len=length, prefill_chunk=16
    )
    found = sweep_graph(convert_plain(checkpoint, shape, [key]), key)
    assert "TopKV2" in {fault.partition(":")[0] for fault in found.noticed}


def test_every_kind_that_computes_has_a_fault(converted: Converted) -> None:
    """What inputs and outputs are bound to is compared elsewhere."""
    kinds = {step.kind for program in converted.programs.values() for step in Steps(program.graph).steps}
    assert kinds <= WRONG.keys() | WITHOUT_FAULT.keys()
    assert not WRONG.keys() & WITHOUT_FAULT.keys()


def test_a_recorded_run_is_the_evaluation(converted: Converted) -> None:
    """Of every graph: what a run leaves is what writes in place leave, bit for bit."""
    for key, program in converted.programs.items():
        steps = Steps(program.graph)
        assert len(steps.left) == len(program.written)
        launch = record(converted, key, requests()[1:3])[-1]
        ends = RecordedRun(steps, launch.before).ends()
        in_place = [tensor.clone() for tensor in launch.before]
        outputs = evaluate(program.graph, in_place)
        for name, index in steps.left.items():
            assert torch.equal(ends[name], in_place[index]), (key, name)
        for name, output in zip(steps.outputs, outputs, strict=True):
            assert torch.equal(ends[name], output), (key, name)


def test_a_changed_run_is_an_evaluation_of_the_changed_graph(converted: Converted) -> None:
    """What a changed run leaves out does not matter: here all is run, with a type changed in the file."""
    program = copy.deepcopy(converted.programs["draft_step", 2])
    steps = Steps(program.graph)
    launch = record(converted, ("draft_step", 2), requests()[1:3])[-1]
    run = RecordedRun(steps, launch.before)
    subtractions = [place for place, step in enumerate(steps.steps) if step.kind == "Sub"]
    assert subtractions
    for place in subtractions:
        found = run.ends() | dict(run.changed_ends(place, RULES["Add"]))
        steps.steps[place].operator.type = "Add"
        in_place = [tensor.clone() for tensor in launch.before]
        evaluate(program.graph, in_place)
        steps.steps[place].operator.type = "Sub"
        for name, index in steps.left.items():
            assert torch.equal(found[name], in_place[index]), name
