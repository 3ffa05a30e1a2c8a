"""Every graph as GE IR computes what the eager modules compute, in any order its edges allow."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch

from nextn.compile.targets.air.ge_program import GeProgram
from nextn.graphs.eager_session import EagerRequest
from nextn.graphs.phases import graph_keys
from nextn.runtime.contract.blocks import Control, Result
from tests.npu.sessions import Converted, largest_difference, outcome
from tests.oracles.ge_evaluator import Order

STATE_TOLERANCE = 1e-5
"""Measured: 2.4e-6."""


ORDERS: tuple[Order, ...] = ("file", "writes first", 1)


@pytest.mark.parametrize(
    ("mode", "order"),
    [
        *(("round", order) for order in ORDERS),
        *((mode, "file") for mode in ("phases", "plain")),
        *(
            pytest.param(mode, order, marks=pytest.mark.full)
            for mode in ("phases", "plain")
            for order in ORDERS[1:]
        ),
    ],
)
def test_rounds_equal_eager(converted: Converted, mode: str, order: Order) -> None:
    options = {"phases": mode == "phases", "speculation": mode != "plain"}
    eager, evaluated = converted.eager(**options), converted.evaluated(order, **options)
    assert outcome(evaluated) == (expected := outcome(eager))
    assert largest_difference(evaluated.state, eager.state) <= STATE_TOLERANCE
    if mode == "round":
        lens = [length for _, accept_lens, _ in expected for length in accept_lens]
        assert {1, 2, 3} <= set(lens), "every acceptance occurs"


def programs(converted: Converted) -> list[tuple[str, GeProgram]]:
    return [(f"{name}.b{batch}", program) for (name, batch), program in converted.programs.items()]


def test_every_graph_converts(converted: Converted) -> None:
    assert list(converted.programs) == graph_keys(converted.shape)


def test_inputs_are_the_contract_by_index(converted: Converted) -> None:
    for key, program in programs(converted):
        inputs = {op.attr["index"].i: op for op in program.graph.op if op.type in ("Data", "RefData")}
        assert sorted(inputs) == list(range(len(program.tensors))), key
        for index, spec in enumerate(program.tensors):
            assert inputs[index].name == spec.name.replace(".", "_"), key
            assert tuple(inputs[index].output_desc[0].shape.dim) == spec.shape, key
            assert (inputs[index].type == "RefData") == (spec.name in program.written), (key, spec.name)


def test_state_is_written_in_place_and_never_returned(converted: Converted) -> None:
    """TorchAir's own way would copy each buffer, or return it: https://gitee.com/ascend/torchair."""
    for key, program in programs(converted):
        kinds = Counter(op.type for op in program.graph.op)
        assert not kinds.keys() & {"TensorMove", "Assign", "Variable", "ScatterElements"}, key
        assert kinds["ScatterNdUpdate"] >= len(program.written) > 0
        (output,) = [op for op in program.graph.op if op.type == "NetOutput"]
        returned = [source for source in output.input if not source.endswith(":-1")]
        assert len(returned) == 1, key


def test_rows_returned_are_those_after_every_write(converted: Converted) -> None:
    """The result block of a round, the control block of a graph that leaves results alone."""
    for name, width in (("round", Result.WIDTH), ("draft_step", Control.WIDTH)):
        session = converted.evaluated()
        session.prefill(0, EagerRequest([3, 1, 4], 8))
        session.prefill(1, EagerRequest([3, 1, 4], 8))
        session.input("slots_b2").copy_(torch.tensor([1, 0]))
        (rows,) = session.graphs[name, 2]()  # type: ignore[misc]
        block = session.input("result" if name == "round" else "control")
        assert rows.shape == (2, width)
        assert torch.equal(rows, block[[1, 0]])


def test_no_weight_is_transposed_at_run_time(converted: Converted) -> None:
    for key, program in programs(converted):
        operators = {op.name: op for op in program.graph.op}
        for op in program.graph.op:
            if op.type == "Transpose":
                assert operators[op.input[0].rpartition(":")[0]].type not in ("Data", "RefData"), key


def without_order(program: GeProgram) -> GeProgram:
    """The same graph with the edges removed that make writes wait for readers."""
    model = copy.deepcopy(program.model)
    for op in model.graph[0].op:
        if op.type == "ScatterNdUpdate":
            op.input[:] = [source for source in op.input if not source.endswith(":-1")]
    return replace(program, model=model)


def test_order_of_reads_and_writes_is_needed(converted: Converted) -> None:
    """Without its edges a round goes wrong where writes come early: the test above can fail."""
    loose = {key: without_order(program) for key, program in converted.programs.items()}
    unordered = Converted(converted.shape, converted.weights, loose)
    expected, session = converted.eager(), unordered.evaluated("writes first")
    outcome(session), outcome(expected)
    assert largest_difference(session.state, expected.state) > 0.1
