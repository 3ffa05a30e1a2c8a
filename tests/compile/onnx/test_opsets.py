"""The same graph in every operator set that `--opset` takes."""

from __future__ import annotations

import onnx
import pytest
import torch

from nextn.compile.build.trace import TracedGraph, trace, unwritten_model
from nextn.compile.targets.functional import FunctionalGraph, functionalize
from nextn.compile.targets.onnx.onnx_program import OnnxLayout, to_onnx
from nextn.compile.targets.onnx.target import DEFAULT_OPSET, NEWEST_OPSET
from nextn.graphs.eager_session import EagerRequest, EagerSession
from nextn.graphs.state import State
from tests.compile.onnx.run import open_model
from tests.onnx_sessions import Exported, differences, launcher

KEY = ("accept", 2)


@pytest.fixture(scope="module")
def traced(exported: Exported) -> TracedGraph:
    return trace(*KEY, *unwritten_model(exported.shape), exported.shape)


@pytest.fixture(scope="module")
def functional(traced: TracedGraph) -> FunctionalGraph:
    return functionalize(traced)


@pytest.fixture
def session(exported: Exported) -> EagerSession:
    """Two requests of which one round is verified and not yet accepted."""
    session = exported.eager(phases=True)
    session.prefill(0, EagerRequest([3, 1, 4], 9))
    session.prefill(1, EagerRequest([2, 7, 1, 8], 2))
    session.input("slots_b2").copy_(torch.tensor([0, 1]))
    session.launch("verify", 2)
    return session


@pytest.mark.parametrize("opset", range(DEFAULT_OPSET, NEWEST_OPSET + 1))
def test_accept(
    exported: Exported, traced: TracedGraph, functional: FunctionalGraph, session: EagerSession, opset: int
) -> None:
    model = to_onnx(functional, traced.spec, exported.shape, OnnxLayout(opset, {}))
    onnx.checker.check_model(model, full_check=True)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", opset)]
    assert model.ir_version == onnx.helper.find_min_ir_version_for(list(model.opset_import))
    state = State(exported.shape)
    for name, buffer in session.state.named_buffers():
        state.get_buffer(name).copy_(buffer)
    before = state.get_buffer("control").clone()
    launcher(open_model(model), state)()
    session.launch(*KEY)
    assert not torch.equal(state.get_buffer("control"), before)
    assert max(differences(state, session.state).values()) == 0
