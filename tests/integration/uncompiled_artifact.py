"""Artifacts whose graphs nobody compiled: real weights and manifest, graph files that say their own name."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import torch

from nextn.graphs.model import derived_constants
from nextn.graphs.phases import graph_keys, graph_rows
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import input_table, state_table
from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS
from nextn.runtime.contract.graph_spec import GraphSpec, TensorSpec
from nextn.runtime.contract.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    ComputeDtype,
    Device,
    Emit,
    FileRecord,
    GraphRecord,
    InputSpec,
    Limits,
    Manifest,
    ModelRecord,
    Producer,
    ReturnedBlock,
    Speculation,
    Target,
    WeightsFile,
    block_layouts,
    to_json,
)
from nextn.runtime.contract.strict_json import decode
from nextn.runtime.contract.version import VERSION
from nextn.weights import Checkpoint, pack_weights, packed_weights
from nextn.weights.pack import PackedFile
from tests.artifact_builder import REQUIRED

ZEROS = "0" * 64


GraphBytes = Callable[[GraphSpec], bytes]


def write_uncompiled(
    folder: Path,
    checkpoint: Checkpoint,
    shape: SessionShape,
    *,
    device: Device = "cpu",
    emit: Emit = "onnx",
    content: GraphBytes = lambda graph: graph.key.encode(),
    graph_tensors: Mapping[str, tuple[TensorSpec, ...]] | None = None,
    returns: Callable[[GraphSpec], ReturnedBlock | None] = lambda graph: None,
) -> Path:
    """An artifact of `shape` in `folder`.

    Without `graph_tensors`, by key, every graph is said to read all weights, state and inputs. `returns` is
    for graphs that return a block.
    """
    (folder / "graphs").mkdir(parents=True)
    (folder / "golden.safetensors").write_bytes(b"none")
    config = shape.config
    weights = _weights(folder, checkpoint, shape)
    tensors = (
        *(TensorSpec(one.name, "weight", one.storage.dtype, one.storage.shape) for one in weights.tensors),
        *(TensorSpec(one.name, "state", one.dtype, one.shape(shape.slots)) for one in state_table(shape)),
        *input_table(shape),
    )
    graphs = []
    for name, batch in graph_keys(shape):
        own = tensors if graph_tensors is None else graph_tensors[f"{name}.b{batch}"]
        graphs.append(GraphSpec(name, batch, graph_rows(name, shape), own))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        manifest_sha256=ZEROS,
        producer=Producer(VERSION, torch.__version__, "none", ZEROS, ("test",)),
        target=Target(device, emit, cast(ComputeDtype, shape.dtype), (), None, 1, 0),
        model=ModelRecord(config.to_dict(), ZEROS, config.vocab_size, None, config.eos_token_ids),
        speculation=Speculation(shape.num_steps, shape.window_rows),
        limits=Limits(
            shape.max_seq_len, shape.prefill_chunk, shape.batch_sizes, shape.slots, MAX_WINDOW_ROWS
        ),
        state=tuple(state_table(shape)),
        inputs=tuple(InputSpec(one.name, one.dtype, one.shape) for one in input_table(shape)),
        blocks=block_layouts(),
        requires=REQUIRED[emit],
        ops={},
        graphs=tuple(
            dataclasses.replace(write_graph(folder, graph, emit, content(graph)), returns=returns(graph))
            for graph in graphs
        ),
        weights=weights,
        golden=FileRecord("golden.safetensors", 4, hashlib.sha256(b"none").hexdigest()),
        tokenizer=(),
    )
    (folder / MANIFEST_FILE).write_text(to_json(manifest))
    return folder


def write_graph(folder: Path, graph: GraphSpec, emit: Emit, content: bytes) -> GraphRecord:
    """Writes a graph's file; the record that a manifest has of it."""
    file = f"graphs/{graph.key}.{emit}"
    (folder / file).write_bytes(content)
    return GraphRecord(
        name=graph.name,
        batch=graph.batch,
        rows=graph.rows,
        file=file,
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        tensors=graph.tensors,
    )


def _weights(folder: Path, checkpoint: Checkpoint, shape: SessionShape) -> WeightsFile:
    path = folder / "weights.safetensors"
    packed: list[PackedFile] = []
    pack_weights(
        checkpoint,
        packed_weights(shape.config, shape.num_steps > 0),
        getattr(torch, shape.dtype),
        path,
        extra=derived_constants(shape.config),
        finished=packed.append,
    )
    kept = dataclasses.asdict(packed[0])
    return decode(WeightsFile, {"file": path.name, "tensors": kept.pop("entries"), **kept})
