"""A graph as a function: all that it binds as arguments, all that it writes as results."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from nextn.compile.build.trace import TracedGraph, trace
from nextn.compile.targets.functional import functionalize
from nextn.graphs.eager_session import EagerSession
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.graph_spec import GraphSpec, TensorSpec
from tests.compile.session_in_progress import session_in_progress
from tests.graphs.lowerable import operator_calls


@pytest.fixture(scope="module")
def session() -> EagerSession:
    return session_in_progress()


@pytest.mark.parametrize("name", ["accept", "draft_extend", "draft_step"])
def test_results_are_what_the_module_writes(session: EagerSession, name: str) -> None:
    module, state = session.graphs[name, 2], session.state
    functional = functionalize(trace(name, 2, module.model, state, session.shape))
    owners = {"weight": module.model, "state": state, "input": state}
    arguments = [owners[spec.kind].get_buffer(spec.name).clone() for spec in functional.tensors]
    before = [argument.clone() for argument in arguments]
    results = fx.Interpreter(fx.GraphModule({}, functional.graph)).run(*arguments)
    module()
    assert "control" in functional.written
    for tensor, result in zip(functional.written, results, strict=True):
        assert torch.allclose(result.double(), state.get_buffer(tensor).double(), rtol=0, atol=1e-6), tensor
    for argument, one in zip(arguments, before, strict=True):
        assert torch.equal(argument, one), "no argument is changed"


def test_only_core_operators_without_side_effects(session: EagerSession) -> None:
    module = session.graphs["draft_step", 2]
    functional = functionalize(trace("draft_step", 2, module.model, session.state, session.shape))
    for node in operator_calls(functional.graph):
        assert node.target.namespace == "aten" and not node.target._schema.is_mutable, node.target
    assert [node.op for node in functional.arguments().values()] == ["placeholder"] * len(functional.tensors)


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Module()
        self.state.register_buffer("ring", torch.zeros(4, 2))

    def forward(self) -> tuple[()]:
        self.state.ring.add_(1)
        return ()


def test_a_change_that_is_no_row_write() -> None:
    program = torch.export.export(Adding(), (), strict=False)
    spec = GraphSpec("accept", 1, 1, (TensorSpec("ring", "state", "float32", (4, 2)),))
    with pytest.raises(ExecutionError, match=r"graph accept\.b1 changes a buffer") as caught:
        functionalize(TracedGraph(spec, program))
    assert (caught.value.key, caught.value.expected) == ("ring", "aten.index_put.default")
