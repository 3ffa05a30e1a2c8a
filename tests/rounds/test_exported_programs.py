"""The exported programs every lowering starts from: what they contain, and that they equal the modules."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from nextn.graphs.eager_session import EagerRequest, EagerSession, GraphKey, eager_graphs, exported_graphs
from nextn.graphs.model import Model
from nextn.graphs.ops.operator import OPERATORS, short_name
from nextn.graphs.phases import graph_keys
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State, input_table, state_table
from tests.graphs.lowerable import assert_lowers_everywhere, operator_calls

INT8_ONLY = {"int8_linear", "routed_int8_experts"}
"""Operators that only graphs with stored int8 weights have."""


@dataclass(frozen=True)
class Exported:
    """All programs of one small session, k = 3, over one state."""

    shape: SessionShape
    model: Model
    state: State
    graphs: dict[GraphKey, nn.Module]

    def session(self, **options: bool) -> EagerSession:
        return EagerSession(self.shape, self.state, self.graphs, **options)


@pytest.fixture(scope="module")
def exported(product_of) -> Exported:
    product = product_of("tiny")
    shape = product.shape(3, (2,), max_seq_len=144)
    state = State(shape)
    with torch.no_grad():
        return Exported(shape, product.model(), state, exported_graphs(product.model(), state, shape))


def plain_calls(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What one of our own operators decomposes into, at the shapes of this node."""
    examples = [one.meta["val"] for one in node.args if isinstance(one, torch.fx.Node)]
    constants = node.args[len(examples) :]
    tensors = [torch.zeros(one.shape, dtype=one.dtype) for one in examples]
    function = OPERATORS[node.target]
    plain = make_fx(lambda *inputs: function(*inputs, *constants))(*tensors)
    return operator_calls(plain.graph)


def assert_all_lower(nodes: list[torch.fx.Node], seen: set[torch._ops.OpOverload]) -> None:
    for node in nodes:
        if node.target not in OPERATORS:
            assert_lowers_everywhere(node)
        elif node.target not in seen:
            seen.add(node.target)
            assert_all_lower(plain_calls(node), seen)


def test_no_operator_that_a_lowering_lacks(exported):
    """Neither in a program nor in the plain implementation of an operator of ours."""
    seen = set()
    for graph in exported.graphs.values():
        assert_all_lower(operator_calls(graph.graph), seen)
    assert {short_name(operator) for operator in set(OPERATORS) - seen} == INT8_ONLY


def test_no_arguments_and_no_results(exported):
    assert sorted(exported.graphs) == sorted(graph_keys(exported.shape))
    for key, graph in exported.graphs.items():
        assert not [node for node in graph.graph.nodes if node.op == "placeholder"], key
        [output] = [node for node in graph.graph.nodes if node.op == "output"]
        assert torch.fx.node.map_arg(output.args, lambda node: node) in (((),), ([],), ()), key
        assert graph() in ((), []), key


def written_buffers(graph: nn.Module) -> set[str]:
    """Names of the tensors that the program changes in place."""
    names = set()
    for node in operator_calls(graph.graph):
        operator = node.target
        if operator._schema.is_mutable:
            assert operator._schema.name == "aten::index_put_", operator  # write_rows, and nothing else
            target = node.args[0]
            while target.op == "call_function":  # a second write to one buffer hangs on the first
                assert target.target is operator, node
                target = target.args[0]
            assert target.op == "get_attr", node
            names.add(target.target)
    return names


def test_every_state_tensor_is_written_in_place_and_nothing_else_is(exported):
    """Inputs and weights are read only; a functional copy of a cache would not appear here at all."""
    state = {spec.name for spec in state_table(exported.shape)}
    written = {key: written_buffers(graph) for key, graph in exported.graphs.items()}
    for key, names in written.items():
        assert names <= {f"state.{name}" for name in state}, key
    prefill = {name.removeprefix("state.") for name in written["prefill", 1]}
    assert prefill == state - {"nextn_stream", "nextn_window"}
    assert {name.removeprefix("state.") for name in written["round", 2]} == state - {"tokens"}
    assert written["round", 2] == set().union(
        *(written[name, 2] for name in ("verify", "accept", "draft_extend", "draft_step"))
    )
    assert not {spec.name for spec in input_table(exported.shape)} & state


def test_programs_share_the_sessions_tensors(exported):
    """One copy of weights and state for all graphs."""
    owners = {"state": exported.state, "model": exported.model}
    own = {owner: dict(module.named_buffers()) for owner, module in owners.items()}
    for graph in exported.graphs.values():
        shared = 0
        for name, buffer in graph.named_buffers():
            owner, _, rest = name.partition(".")
            if rest in own.get(owner, {}):
                assert buffer.data_ptr() == own[owner][rest].data_ptr(), name
                shared += 1
        assert shared >= 3  # at the least control, result and slots


def requests_of(product, count: int) -> list[EagerRequest]:
    lengths = [1, 4, 9, 17, 126, 2, 5, 33, 125, 3, 8, 6][:count]
    return [
        EagerRequest(
            product.oracle.prompt(length, seed=70 + index), 12, seed=index, temperature=0.8 * (index % 2)
        )
        for index, length in enumerate(lengths)
    ]


def results(requests: list[EagerRequest]) -> list[tuple[list[int], list[int], str | None]]:
    return [(one.tokens, one.accept_lens, one.finish_reason) for one in requests]


@pytest.mark.parametrize("phases", [False, True])
def test_programs_equal_the_modules(product_of, exported, phases):
    """Tokens, acceptance, and every buffer bit for bit, after a whole run.

    https://github.com/vllm-project/vllm/issues/45425: captured graphs differed silently from eager code.
    """
    product = product_of("tiny")
    for name, buffer in State(exported.shape).named_buffers():
        exported.state.get_buffer(name).copy_(buffer)
    state = State(exported.shape)
    eager = EagerSession(
        exported.shape, state, eager_graphs(exported.model, state, exported.shape), phases=phases
    )
    expected = eager.generate(requests_of(product, 5))
    found = exported.session(phases=phases).generate(requests_of(product, 5))
    assert results(found) == results(expected)
    for spec in state_table(exported.shape):
        assert torch.equal(exported.state.get_buffer(spec.name), state.get_buffer(spec.name)), spec.name


def test_speculative_programs_give_the_plain_programs_tokens(product_of, exported):
    """The token sweep once more on what is lowered; a value frozen at export would show here.

    https://github.com/NVIDIA/TensorRT-LLM/issues/17110: a length frozen at capture, acceptance unharmed.
    """
    product = product_of("tiny")
    plain = exported.session(speculation=False).generate(requests_of(product, 12))
    speculative = exported.session().generate(requests_of(product, 12))
    assert [one.tokens for one in speculative] == [one.tokens for one in plain]
    assert {len(one.tokens) for one in plain} == {12}


def test_sessions_take_turns_on_one_program(product_of):
    """The sweeps lend one program to every session: each must go on with its own state, as if alone."""
    product = product_of("tiny")
    shape = product.shape(3, (2,))
    expected = [product.generate([request], shape)[0] for request in requests_of(product, 2)]
    sessions, requests = [product.session(shape) for _ in range(2)], requests_of(product, 2)
    for session, request in zip(sessions, requests, strict=True):
        session.prefill(0, request)
    while any(session.live for session in sessions):
        for session in sessions:
            session.round()
    assert results(requests) == results(expected)
    assert requests[0].tokens != requests[1].tokens
