"""Exported programs as files: the values of the modules, in place, and nothing else in the file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from nextn.compile.build.trace import trace, unwritten_model
from nextn.compile.targets.pt2.exported_program import write_exported_program
from nextn.graphs.eager_session import EagerSession
from nextn.runtime.contract.graph_spec import GraphSpec
from tests.compile.session_in_progress import session_in_progress
from tests.graphs.lowerable import operator_calls

KEY = ("draft_extend", 2)


@pytest.fixture(scope="module")
def session() -> EagerSession:
    return session_in_progress()


@pytest.fixture(scope="module")
def written(session: EagerSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GraphSpec]:
    """A graph as a compile worker writes it: from a model and state without content."""
    file = tmp_path_factory.mktemp("graphs") / "draft_extend.b2.pt2"
    model, state = unwritten_model(session.shape)
    traced = trace(*KEY, model, state, session.shape)
    write_exported_program(traced, file)
    return file, traced.spec


def test_a_loaded_program_changes_state_as_the_module_does(session: EagerSession, written) -> None:
    """Bit for bit: its operators are those of the module."""
    file, spec = written
    module, state = session.graphs[KEY], session.state
    state.get_buffer("nextn_window").zero_()  # the round has written the same rows
    owners = {"weight": module.model, "state": state, "input": state}
    arguments = [owners[tensor.kind].get_buffer(tensor.name).clone() for tensor in spec.tensors]
    torch.export.load(file).graph_module(*arguments)
    before = {name: buffer.clone() for name, buffer in state.named_buffers()}
    module()
    changed = set()
    for tensor, argument in zip(spec.tensors, arguments, strict=True):
        assert torch.equal(argument, owners[tensor.kind].get_buffer(tensor.name)), tensor.name
        if tensor.kind == "state" and not torch.equal(argument, before[tensor.name]):
            changed.add(tensor.name)
    assert changed == {"control", "nextn_stream", "nextn_window"}


def test_the_file_holds_operators_alone(written) -> None:
    """No weights, no example arguments, no path of the machine; the weights are 1.5 MB."""
    file, spec = written
    assert sum(tensor.nbytes for tensor in spec.tensors) > 500_000 > file.stat().st_size
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
