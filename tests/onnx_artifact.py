"""ONNX artifacts made in this process, of the graphs that a test launches; a compile starts one for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from nextn.compile.build.artifact_files import file_sha256
from nextn.compile.build.trace import trace, unwritten_model
from nextn.compile.targets.onnx.onnx_program import write_onnx
from nextn.compile.targets.onnx.target import DEFAULT_OPSET, OnnxTarget
from nextn.compile.targets.target import WEIGHTS_FILE
from nextn.graphs.eager_session import GraphKey
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.manifest import MANIFEST_FILE, GraphRecord, parse_manifest, to_json
from nextn.weights import Checkpoint
from tests.integration.uncompiled_artifact import write_uncompiled
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

SMALL = CASES["c4_twice"].config | {
    "compress_ratios": [4, 0],
    "num_hidden_layers": 1,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 2,
    "index_topk": 3,
    "num_hash_layers": 0,
}
"""One layer that has what the others have, and selects entries. Few operators: tracing takes the time."""


def small_checkpoint(folder: Path) -> tuple[Checkpoint, SessionShape]:
    checkpoint = Checkpoint.open(write_checkpoint(folder, SMALL, random_weights(SMALL, seed=7)))
    shape = SessionShape(checkpoint.config, num_steps=2, batch_sizes=(2,), max_seq_len=128, prefill_chunk=16)
    return checkpoint, shape


def write_artifact(
    folder: Path,
    checkpoint: Checkpoint,
    shape: SessionShape,
    keys: Iterable[GraphKey],
    opset: int = DEFAULT_OPSET,
) -> Path:
    """An artifact in which only the graphs in `keys` are real."""
    write_uncompiled(folder, checkpoint, shape, emit="onnx")
    weights = folder / OnnxTarget.weights_file
    (folder / WEIGHTS_FILE).rename(weights)
    manifest = parse_manifest((folder / MANIFEST_FILE).read_text(), MANIFEST_FILE)
    graphs = {(one.name, one.batch): one for one in manifest.graphs}
    for key in keys:
        graphs[key] = _written(folder, graphs[key], shape, opset, weights)
    manifest = replace(
        manifest,
        graphs=tuple(graphs.values()),
        weights=replace(manifest.weights, file=OnnxTarget.weights_file),
    )
    (folder / MANIFEST_FILE).write_text(to_json(manifest))
    return folder


def _written(
    folder: Path, record: GraphRecord, shape: SessionShape, opset: int, weights: Path
) -> GraphRecord:
    file = folder / record.file
    traced = trace(record.name, record.batch, *unwritten_model(shape), shape)
    write_onnx(traced, shape, opset, weights, file)
    return replace(record, sha256=file_sha256(file), bytes=file.stat().st_size, tensors=traced.spec.tensors)
