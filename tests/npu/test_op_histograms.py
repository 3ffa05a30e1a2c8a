"""The operators of every graph of every batch size: a new conversion, transpose or copy shows here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef

from nextn.compile.build.inputs import DEMO, checkpoint_folder
from nextn.compile.build.trace import trace, unwritten_model
from nextn.compile.targets.air.ge_program import to_ge
from nextn.graphs.phases import graph_keys, slots_input
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.blocks import Control, Result
from nextn.runtime.contract.manifest import GraphRecord, parse_manifest
from nextn.weights import Checkpoint
from tests.npu.golden_histograms import GOLDEN, Histogram, as_text, assert_golden, golden, histogram
from tests.npu.sessions import Converted
from tests.npu.test_emit_air import compile_air
from tests.oracles.published_layouts import write_layout

BATCH_SIZES = (1, 4)


def test_quick_model(converted: Converted) -> None:
    programs = converted.programs.items()
    assert_golden("quick", {f"{name}.b{batch}": histogram(p.graph) for (name, batch), p in programs})


def test_some_graphs_of_the_demo() -> None:
    """As the command compiles them, in seconds."""
    shape = demo_shape()
    model, state = unwritten_model(shape)
    for name, batch in (("accept", 1), ("accept", 4), ("draft_step", 4)):
        program = to_ge(trace(name, batch, model, state, shape), slots_input(name, batch))
        assert histogram(program.graph) == golden()["demo"][f"{name}.b{batch}"], name


def demo_shape() -> SessionShape:
    """The command's defaults."""
    config = Checkpoint.open(checkpoint_folder(DEMO)).config
    return SessionShape(
        config, "bfloat16", batch_sizes=BATCH_SIZES, max_seq_len=config.max_position_embeddings
    )


@pytest.mark.full
def test_every_graph_of_the_demo(tmp_path: Path) -> None:
    assert_golden("demo", compiled("demo", tmp_path / "artifact"))


@pytest.mark.full
def test_every_graph_of_the_demo_in_int8(tmp_path: Path) -> None:
    """ModelSlim's W8A8 of the same weights."""
    demo = checkpoint_folder(DEMO)
    weights = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in load_file(demo / "model.safetensors").items()
    }
    write_layout(tmp_path / "twin", "modelslim", json.loads((demo / "config.json").read_text()), weights)
    found = compiled(str(tmp_path / "twin"), tmp_path / "artifact", "--weights-as", "stored")
    for name, counts in found.items():
        assert name.startswith("accept") or counts["QuantBatchMatmulV3"] and counts["GroupedMatmul"], name
    assert_golden("demo W8A8", found)


def compiled(checkpoint: str, artifact: Path, *options: str) -> dict[str, Histogram]:
    """Through the command, with every graph's inputs and output held against the manifest."""
    sizes = ",".join(map(str, BATCH_SIZES))
    compile_air([checkpoint, "-o", str(artifact), "--batch-sizes", sizes, *options])
    manifest = parse_manifest((artifact / "manifest.json").read_text(), "manifest.json")
    expected = [f"{name}.b{batch}" for name, batch in graph_keys(demo_shape())]
    assert [graph.spec.key for graph in manifest.graphs] == expected
    found = {}
    for record in manifest.graphs:
        model = ModelDef()
        model.ParseFromString((artifact / record.file).read_bytes())
        assert_contract(model.graph[0], record)
        found[record.spec.key] = histogram(model.graph[0])
    return found


def assert_contract(graph: Any, record: GraphRecord) -> None:
    """Inputs are the manifest's tensors by index, weights are not written, one block of rows is returned."""
    inputs: Mapping[int, Any] = {op.attr["index"].i: op for op in graph.op if op.type in ("Data", "RefData")}
    assert sorted(inputs) == list(range(len(record.tensors))), record.spec.key
    for index, spec in enumerate(record.tensors):
        assert inputs[index].name == spec.name.replace(".", "_"), record.spec.key
        assert tuple(inputs[index].output_desc[0].shape.dim) == spec.shape, (record.spec.key, spec.name)
        assert inputs[index].type == "Data" or spec.kind != "weight", (record.spec.key, spec.name)
    [output] = [op for op in graph.op if op.type == "NetOutput"]
    [_] = [source for source in output.input if not source.endswith(":-1")]
    [described] = output.input_desc
    assert tuple(described.shape.dim) in {(record.batch, Result.WIDTH), (record.batch, Control.WIDTH)}, (
        record.spec.key
    )


def test_the_golden_file_is_as_it_is_written() -> None:
    text = GOLDEN.read_text()
    assert text == as_text(json.loads(text))
