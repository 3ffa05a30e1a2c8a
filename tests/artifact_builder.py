"""Writes artifacts that nobody compiled: a manifest of the contract's dataclasses, and the files it names."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch

from nextn.graphs.model import derived_constants
from nextn.graphs.phases import graph_keys, graph_rows
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import input_table, state_table
from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS, Control, Result
from nextn.runtime.contract.graph_spec import GraphSpec, StateSpec, TensorSpec
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
    WeightRecord,
    WeightsFile,
    WeightStorage,
    block_layouts,
    to_json,
)
from nextn.runtime.contract.strict_json import decode
from nextn.runtime.contract.version import VERSION
from nextn.weights import Checkpoint, pack_weights, packed_weights
from nextn.weights.config_json import parse_model_config
from nextn.weights.pack import PackedFile
from tests.oracles.shape_cases import CASES

ZEROS = "0" * 64

BLOCKS = (StateSpec("control", 1, Control.WIDTH, "int64"), StateSpec("result", 1, Result.WIDTH, "int64"))
"""The state through which the host speaks to graphs."""

PROMPT_INPUTS = ("prompt_slot", "prompt_tokens", "prompt_count")

SUFFIX = {"aoti": "so"}

Content = Callable[[GraphSpec], bytes]
Tensors = tuple[TensorSpec, ...]


REQUIRED: Mapping[str, tuple[str, ...]] = {
    "aoti": ("libtorch",),
    "pt2": ("torch",),
    "onnx": ("onnxruntime",),
    "air": ("libascendcl",),
    "om": ("libascendcl",),
}


def small_shape(
    vocab_size: int,
    eos_token_ids: tuple[int, ...],
    num_steps: int,
    batch_sizes: tuple[int, ...],
    max_seq_len: int,
    prefill_chunk: int,
) -> SessionShape:
    """For graphs that are no network: of the model only its tokens matter."""
    config, _ = parse_model_config(CASES["tiny"].config, "config.json")
    config = dataclasses.replace(
        config, vocab_size=vocab_size, bos_token_id=None, eos_token_ids=eos_token_ids
    )
    return SessionShape(config, "float32", num_steps, batch_sizes, max_seq_len, prefill_chunk)


def write_artifact(
    folder: Path,
    shape: SessionShape,
    weights: WeightsFile,
    state: Sequence[StateSpec],
    *,
    device: Device = "cpu",
    emit: Emit = "aoti",
    content: Content = lambda graph: graph.key.encode(),
    graph_tensors: Mapping[str, Tensors] = MappingProxyType({}),
    returns: Callable[[GraphSpec], ReturnedBlock | None] = lambda graph: None,
    tokenizer: Sequence[str] = (),
    command: tuple[str, ...] = ("test",),
) -> Path:
    """An artifact of `shape` in `folder`, where the weights file and files of a tokenizer lie already.

    A graph that is not in `graph_tensors`, by key, is said to read all weights, state and inputs.
    `content` gives a graph's file, `returns` the block that a graph returns, where graphs return one.
    """
    (folder / "graphs").mkdir(parents=True, exist_ok=True)
    (folder / "golden.safetensors").write_bytes(b"none")
    config = shape.config
    shared = (
        *(TensorSpec(one.name, "weight", one.storage.dtype, one.storage.shape) for one in weights.tensors),
        *(TensorSpec(one.name, "state", one.dtype, one.shape(shape.slots)) for one in state),
    )
    graphs = []
    for name, batch in graph_keys(shape):
        inputs = input_table(shape)
        if emit == "aoti":  # such a graph must read all that it is said to
            own_inputs = PROMPT_INPUTS if name in ("prefill", "seed") else (f"slots_b{batch}",)
            inputs = [one for one in inputs if one.name in own_inputs]
        own = graph_tensors.get(f"{name}.b{batch}", (*shared, *inputs))
        graphs.append(GraphSpec(name, batch, graph_rows(name, shape), own))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        manifest_sha256=ZEROS,
        producer=Producer(VERSION, torch.__version__, "g++", ZEROS, command),
        target=Target(device, emit, cast(ComputeDtype, shape.dtype), (), None, 1, 0),
        model=ModelRecord(
            config.to_dict(), f"{1:064}", config.vocab_size, config.bos_token_id, config.eos_token_ids
        ),
        speculation=Speculation(shape.num_steps, shape.window_rows),
        limits=Limits(
            shape.max_seq_len, shape.prefill_chunk, shape.batch_sizes, shape.slots, MAX_WINDOW_ROWS
        ),
        state=tuple(state),
        inputs=tuple(InputSpec(one.name, one.dtype, one.shape) for one in input_table(shape)),
        blocks=block_layouts(),
        requires=REQUIRED[emit],
        ops={"linear": "plain"},
        graphs=tuple(_write_graph(folder, graph, emit, content(graph), returns(graph)) for graph in graphs),
        weights=weights,
        golden=file_record(folder, "golden.safetensors"),
        tokenizer=tuple(file_record(folder, name) for name in tokenizer),
    )
    write_manifest(folder, manifest)
    return folder


def write_uncompiled(folder: Path, checkpoint: Checkpoint, shape: SessionShape, **options: Any) -> Path:
    """`write_artifact` with a checkpoint's packed weights and a model's state; ONNX unless told otherwise."""
    folder.mkdir(parents=True)
    weights = pack(checkpoint, shape, folder / "weights.safetensors")
    return write_artifact(folder, shape, weights, state_table(shape), **{"emit": "onnx", **options})


def pack(checkpoint: Checkpoint, shape: SessionShape, path: Path) -> WeightsFile:
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


def write_weight(path: Path, name: str, values: np.ndarray) -> WeightsFile:
    """A file of one tensor, float32."""
    data, shape = values.astype("<f4").tobytes(), values.shape
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, len(data)]}
    file = write_weights_text(path, json.dumps({name: entry}), data)
    storage = WeightStorage("plain", "float32", shape)
    sha256 = hashlib.sha256(data).hexdigest()
    record = WeightRecord(
        name, "test", "float32", shape, storage, None, (), file.header_bytes, len(data), sha256
    )
    return dataclasses.replace(file, tensors=(record,))


def write_weights_text(path: Path, header: str, body: bytes) -> WeightsFile:
    """Whatever a safetensors header says of the body; the record names no tensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = header.encode()
    text += b" " * (-(len(text) + 8) % 64)
    head = struct.pack("<Q", len(text)) + text
    path.write_bytes(head + body)
    hashes = (hashlib.sha256(part).hexdigest() for part in (head, body))
    return WeightsFile(path.name, len(head) + len(body), len(head), *hashes, ())


def file_record(folder: Path, name: str) -> FileRecord:
    content = (folder / name).read_bytes()
    return FileRecord(name, len(content), hashlib.sha256(content).hexdigest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST_FILE).write_text(to_json(manifest))


def read_json(folder: Path) -> Any:
    return json.loads((folder / MANIFEST_FILE).read_text())


def write_json(folder: Path, content: Any) -> None:
    """A manifest of any content with its own hash, as a compiler that meant every word would write it."""
    content["manifest_sha256"] = ZEROS
    text = json.dumps(content)
    sealed = f'"manifest_sha256": "{hashlib.sha256(text.encode()).hexdigest()}'
    (folder / MANIFEST_FILE).write_text(text.replace(f'"manifest_sha256": "{ZEROS}', sealed))


def _write_graph(
    folder: Path, graph: GraphSpec, emit: Emit, content: bytes, returns: ReturnedBlock | None
) -> GraphRecord:
    file = f"graphs/{graph.key}.{SUFFIX.get(emit, emit)}"
    (folder / file).write_bytes(content)
    record = file_record(folder, file)
    return GraphRecord(
        graph.name, graph.batch, graph.rows, file, record.sha256, record.bytes, graph.tensors, returns
    )
