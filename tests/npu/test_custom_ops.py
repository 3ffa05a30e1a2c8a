"""Graphs that call operators of packages: converted where the graph engine knows them, refused where not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from nextn.compile.build.trace import trace, unwritten_model
from nextn.compile.targets.air.ge_program import GeProgram, to_ge
from nextn.compile.targets.ascend.fused_ops import CUSTOM_OPS
from nextn.graphs.eager_session import EagerRequest, EagerSession, eager_graphs
from nextn.graphs.model import Model, derived_constants
from nextn.graphs.phases import slots_input
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.runtime.contract.errors import ExecutionError
from nextn.weights import Checkpoint, load_weights, packed_weights
from nextn.weights.config_json import parse_model_config
from tests.npu.sessions import launcher
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

MHC = ("MhcPost", "MhcPre", "MhcSinkhorn")
HC = ("HcPost", "HcPre")

STEPS = 4 * 2.0**-8
"""Of bfloat16, to a largest value: `hyper_post` takes the sub-layer's output rounded, ours does not."""


def checkpoint_of(folder: Path, width: int) -> Checkpoint:
    config = CASES["window_only"].config | {"hidden_size": width, "hc_mult": 4}
    return Checkpoint.open(write_checkpoint(folder, config, random_weights(config, seed=3)))


def kinds(program: GeProgram) -> Counter[str]:
    return Counter(operator.type for operator in program.graph.op)


@pytest.mark.parametrize(
    ("custom_ops", "width"), [(MHC, 128), pytest.param(HC, 4096, marks=pytest.mark.full)]
)
def test_a_graph_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, custom_ops: tuple[str, ...], width: int
) -> None:
    checkpoint = checkpoint_of(tmp_path, width)
    shape = SessionShape(checkpoint.config, "bfloat16", num_steps=0, max_seq_len=64, prefill_chunk=8)
    packed = packed_weights(checkpoint.config, False)
    weights = load_weights(checkpoint, packed, torch.bfloat16) | derived_constants(checkpoint.config)
    model, states = Model(shape), (State(shape), State(shape))
    model.load_weights(weights)
    graph = trace("decode", 1, model, states[0], shape)
    with pytest.raises(ExecutionError, match="operator without a converter to GE IR"):
        to_ge(graph, slots_input("decode", 1), custom_ops)
    monkeypatch.setenv("FAKE_CANN_CUSTOM_OPS", ",".join(custom_ops))
    program = to_ge(graph, slots_input("decode", 1), custom_ops)
    mixes = 2 * len(checkpoint.config.compress_ratios)
    assert {name: kinds(program)[name] for name in custom_ops} == dict.fromkeys(custom_ops, mixes)

    eager = eager_graphs(model, states[0], shape)
    evaluated = {**eager_graphs(model, states[1], shape)}
    evaluated["decode", 1] = launcher(program, model, states[1], "file")
    for graphs, state in ((eager, states[0]), (evaluated, states[1])):
        session = EagerSession(shape, state, graphs, speculation=False)
        session.prefill(0, EagerRequest([3, 1, 4, 1, 5], 9))
        session.launch("decode", 1)
    for (name, one), other in zip(states[0].named_buffers(), states[1].buffers(), strict=True):
        largest = float(one.double().abs().max())
        assert float((one.double() - other.double()).abs().max()) <= STEPS * largest, name


@pytest.mark.full
def test_none_are_called_unless_named() -> None:
    wide = CASES["window_only"].config | {"hidden_size": 128, "hc_mult": 4}
    config, _ = parse_model_config(wide, "config.json")
    shape = SessionShape(config, "bfloat16", num_steps=0, max_seq_len=64, prefill_chunk=8)
    program = to_ge(trace("decode", 1, *unwritten_model(shape), shape), slots_input("decode", 1))
    assert not kinds(program).keys() & set(CUSTOM_OPS)
