"""Artifacts whose graphs nobody compiled: real weights and manifest, graph files that say their own name."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import torch

from nextn.graphs.model import derived_constants
from nextn.graphs.phases import graph_keys, graph_rows
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import input_table, state_table
from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS
from nextn.runtime.contract.graph_spec import TensorSpec
from nextn.runtime.contract.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    Device,
    Emit,
    FileRecord,
    GraphRecord,
    InputSpec,
    Limits,
    Manifest,
    ModelRecord,
    Producer,
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

ZEROS = "0" * 64


def write_uncompiled(
    folder: Path, checkpoint: Checkpoint, shape: SessionShape, *, device: Device = "cpu", emit: Emit = "onnx"
) -> Path:
    """An artifact of `shape` in `folder`; every graph is said to read all state and inputs."""
    (folder / "graphs").mkdir(parents=True)
    (folder / "golden.safetensors").write_bytes(b"none")
    config = shape.config
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        manifest_sha256=ZEROS,
        producer=Producer(VERSION, torch.__version__, "none", ZEROS, ("test",)),
        target=Target(device, emit, "float32", (), None, 1, 0),
        model=ModelRecord(config.to_dict(), ZEROS, config.vocab_size, None, config.eos_token_ids),
        speculation=Speculation(shape.num_steps, shape.window_rows),
        limits=Limits(
            shape.max_seq_len, shape.prefill_chunk, shape.batch_sizes, shape.slots, MAX_WINDOW_ROWS
        ),
        state=tuple(state_table(shape)),
        inputs=tuple(InputSpec(one.name, one.dtype, one.shape) for one in input_table(shape)),
        blocks=block_layouts(),
        ops={},
        graphs=tuple(_graph(folder, key, shape, emit) for key in graph_keys(shape)),
        weights=_weights(folder, checkpoint, shape),
        golden=FileRecord("golden.safetensors", 4, hashlib.sha256(b"none").hexdigest()),
        tokenizer=(),
    )
    (folder / MANIFEST_FILE).write_text(to_json(manifest))
    return folder


def _graph(folder: Path, key: tuple[str, int], shape: SessionShape, emit: Emit) -> GraphRecord:
    name, batch = key
    file = f"graphs/{name}.b{batch}.{emit}"
    content = f"{name}.b{batch}".encode()
    (folder / file).write_bytes(content)
    state = [TensorSpec(one.name, "state", one.dtype, one.shape(shape.slots)) for one in state_table(shape)]
    return GraphRecord(
        name=name,
        batch=batch,
        rows=graph_rows(name, shape),
        file=file,
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        tensors=(*state, *input_table(shape)),
    )


def _weights(folder: Path, checkpoint: Checkpoint, shape: SessionShape) -> WeightsFile:
    path = folder / "weights.safetensors"
    packed: list[PackedFile] = []
    pack_weights(
        checkpoint,
        packed_weights(shape.config, shape.num_steps > 0),
        torch.float32,
        path,
        extra=derived_constants(shape.config),
        finished=packed.append,
    )
    kept = dataclasses.asdict(packed[0])
    return decode(WeightsFile, {"file": path.name, "tensors": kept.pop("entries"), **kept})
