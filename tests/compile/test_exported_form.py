"""Exported programs as files: the values of the modules, in place, and nothing else in the file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from torch import fx

from nextn.compile.exported_form import in_place_form, write_exported_program
from nextn.compile.functional import FunctionalGraph, functionalize
from nextn.compile.placeholders import unwritten_model
from nextn.compile.trace import trace
from nextn.graphs.config import parse_model_config
from nextn.graphs.driver import Request, Session, eager_graphs
from nextn.graphs.model import Model
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.graph_spec import TensorSpec
from tests.graphs.lowerable import operator_calls
from tests.oracles.synthetic import CASES

KEY = ("draft_extend", 2)


@pytest.fixture(scope="module")
def session() -> Session:
    """A session in the middle of two requests, on random weights."""
    config, _ = parse_model_config(CASES["tiny"].config, "config.json")
    shape = SessionShape(config, num_steps=2, batch_sizes=(2,), max_seq_len=64, prefill_chunk=8)
    model, state = Model(shape), State(shape)
    generator = torch.Generator().manual_seed(5)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
    session = Session(shape, state, eager_graphs(model, state, shape), phases=True)
    for slot, prompt in enumerate(([3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [2, 7])):
        session.prefill(slot, Request(prompt, 30, temperature=0.7, seed=slot))
    session.round()
    return session


@pytest.fixture(scope="module")
def written(session: Session, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FunctionalGraph]:
    """A graph as a compile worker writes it: from a model and state without content."""
    file = tmp_path_factory.mktemp("graphs") / "draft_extend.b2.pt2"
    model, state = unwritten_model(session.shape)
    traced = trace(*KEY, model, state, session.shape)
    write_exported_program(traced, file)
    return file, functionalize(traced)


def test_a_loaded_program_changes_state_as_the_module_does(session: Session, written) -> None:
    """Bit for bit: its operators are those of the module."""
    file, functional = written
    module, state = session.graphs[KEY], session.state
    state.get_buffer("nextn_window").zero_()  # the round has written the same rows
    owners = {"weight": module.model, "state": state, "input": state}
    arguments = [owners[spec.kind].get_buffer(spec.name).clone() for spec in functional.tensors]
    torch.export.load(file).graph_module(*arguments)
    before = {name: buffer.clone() for name, buffer in state.named_buffers()}
    module()
    changed = set()
    for spec, argument in zip(functional.tensors, arguments, strict=True):
        assert torch.equal(argument, owners[spec.kind].get_buffer(spec.name)), spec.name
        if spec.kind == "state" and not torch.equal(argument, before[spec.name]):
            changed.add(spec.name)
    assert changed == {"control", "nextn_stream", "nextn_window"}


def test_the_file_holds_operators_alone(written) -> None:
    """No weights, no example arguments, no path of the machine; the weights are 1.5 MB."""
    file, functional = written
    assert sum(spec.nbytes for spec in functional.tensors) > 500_000 > file.stat().st_size
    with zipfile.ZipFile(file) as archive:
        sizes = {Path(entry.filename).name: entry.file_size for entry in archive.infolist()}
        assert sizes["model.pt"] == 0 and sizes["model_weights_config.json"] < 50
        assert not [name for name in sizes if name.startswith(("weight_", "tensor_"))]
        text = b"".join(archive.read(entry) for entry in archive.infolist()).decode(errors="replace")
    for word in ("nextn", "stack_trace", ".py", str(Path(__file__).parents[2])):
        assert word not in text.replace("nextn_stream", "").replace("nextn_window", ""), word


def test_nothing_of_ours_is_needed_to_load_it(written) -> None:
    program = torch.export.load(written[0])
    assert {node.target.namespace for node in operator_calls(program.graph)} == {"aten"}
    assert not program.state_dict and not program.constants


def test_an_old_value_read_after_its_write() -> None:
    graph = fx.Graph()
    ring, index, rows = (graph.placeholder(name) for name in ("ring", "index", "rows"))
    changed = graph.call_function(torch.ops.aten.index_put.default, (ring, (index,), rows))
    graph.call_function(torch.ops.aten.neg.default, (ring,))
    graph.output((changed,))
    tensors = tuple(TensorSpec(name, "state", "float32", (4, 2)) for name in ("ring", "index", "rows"))
    with pytest.raises(ExecutionError, match=r"graph round\.b1 reads an old value .* \(key ring\)"):
        in_place_form("round.b1", FunctionalGraph(graph, tensors, ("ring",)))
