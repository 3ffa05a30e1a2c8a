"""Exported graphs: closed, static, of permitted operators only, bound to declared tensors, equal to eager."""

from __future__ import annotations

import pytest
import torch

from nextn.compile.build.trace import TracedGraph, declared_tensors, trace
from nextn.compile.targets.fused_op import OPERATORS
from nextn.graphs.config import parse_model_config
from nextn.graphs.eager_session import Request, Session, eager_graphs
from nextn.graphs.model import Model
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.runtime.contract.errors import ExecutionError
from tests.graphs.lowerable import assert_lowers_everywhere, operator_calls
from tests.oracles.synthetic import CASES

GRAPHS = [("prefill", 1), ("seed", 1), ("decode", 2), ("draft_extend", 2), ("round", 2)]


@pytest.fixture(scope="module")
def shape() -> SessionShape:
    config, _ = parse_model_config(CASES["tiny"].config, "config.json")
    return SessionShape(config, num_steps=2, batch_sizes=(2,), max_seq_len=160, prefill_chunk=8)


@pytest.fixture(scope="module")
def traced(shape: SessionShape) -> dict[str, TracedGraph]:
    model, state = Model(shape), State(shape)
    graphs = [trace(name, batch, model, state, shape) for name, batch in GRAPHS]
    return {graph.spec.key: graph for graph in graphs}


def test_only_operators_every_lowering_has(traced: dict[str, TracedGraph]) -> None:
    for graph in traced.values():
        for node in operator_calls(graph.program.graph):
            if node.target not in OPERATORS:
                assert_lowers_everywhere(node)


def test_state_is_written_in_place_by_row(traced: dict[str, TracedGraph]) -> None:
    """Every mutating call is `index_put_` on a buffer."""
    for key, graph in traced.items():
        for node in operator_calls(graph.program.graph):
            if node.target._schema.is_mutable:
                assert node.target._schema.name == "aten::index_put_", key
                buffer = node.args[0]
                while buffer.target == node.target:
                    buffer = buffer.args[0]
                assert buffer.op == "placeholder", key


def test_graphs_bind_what_they_need(traced: dict[str, TracedGraph], shape: SessionShape) -> None:
    declared = declared_tensors(shape)
    bound = {key: {tensor.name for tensor in graph.spec.tensors} for key, graph in traced.items()}
    for graph in traced.values():
        assert all(declared[tensor.name] == tensor for tensor in graph.spec.tensors)
    assert {"control", "result", "slots_b2"} <= bound["round.b2"]
    assert {"prompt_slot", "prompt_tokens", "prompt_count"} <= bound["prefill.b1"]
    assert not {name for name in bound["decode.b2"] if name.startswith("mtp.")}
    assert not {name for name in bound["draft_extend.b2"] if name.startswith("layers.")}
    assert traced["prefill.b1"].spec.rows == 8 and traced["round.b2"].spec.rows == 3


def test_every_declared_weight_is_bound_by_some_graph(
    traced: dict[str, TracedGraph], shape: SessionShape
) -> None:
    bound = {tensor.name for graph in traced.values() for tensor in graph.spec.tensors}
    assert set(declared_tensors(shape)) - bound == set()


def test_exported_programs_equal_eager_modules(traced: dict[str, TracedGraph], shape: SessionShape) -> None:
    def run(exported: bool) -> tuple[list[int], list[int]]:
        model, state = Model(shape), State(shape)
        generator = torch.Generator().manual_seed(5)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.normal_(0, 0.1, generator=generator)
        graphs = dict(eager_graphs(model, state, shape))
        if exported:
            for name, batch in [("prefill", 1), ("seed", 1), ("round", 2)]:
                graphs[name, batch] = trace(name, batch, model, state, shape).program.module(
                    check_guards=False
                )
        request = Request(list(range(11)), max_new_tokens=8, seed=3, temperature=1.0)
        Session(shape, state, graphs).generate([request])
        return request.tokens, request.accept_lens

    assert run(exported=True) == run(exported=False)


class _Literal(torch.nn.Module):
    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def forward(self) -> tuple[()]:
        control = self.state.get_buffer("control")
        control.index_put_((torch.zeros(1, dtype=torch.int64),), torch.tensor([[7] * control.shape[1]]))
        return ()


class _Undeclared(_Literal):
    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.register_buffer("scratch", torch.zeros(1, dtype=torch.int64))

    def forward(self) -> tuple[()]:
        control = self.state.get_buffer("control")
        control.index_put_((self.scratch,), control[self.scratch] + 1)
        return ()


class _Result(_Literal):
    def forward(self) -> torch.Tensor:
        return self.state.get_buffer("control") + 1


@pytest.mark.parametrize(
    ("module", "message"),
    [(_Literal, "literal tensor"), (_Undeclared, "undeclared tensor"), (_Result, "has results")],
)
def test_a_graph_that_breaks_its_contract_is_refused(
    shape: SessionShape, monkeypatch: pytest.MonkeyPatch, module: type[_Literal], message: str
) -> None:
    state = State(shape)
    monkeypatch.setattr("nextn.compile.build.trace.build_graph", lambda *arguments: module(state))
    with pytest.raises(ExecutionError, match=message):
        trace("round", 2, Model(shape), state, shape)
