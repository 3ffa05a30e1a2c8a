"""ONNX artifacts made in this process, of the graphs that a test launches; a compile starts one for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from nextn.compile.build.trace import trace, unwritten_model
from nextn.compile.targets.onnx.onnx_program import write_onnx
from nextn.compile.targets.onnx.target import DEFAULT_OPSET, OnnxTarget
from nextn.graphs.eager_session import GraphKey
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import state_table
from nextn.runtime.contract.graph_spec import GraphSpec
from nextn.weights import Checkpoint
from tests import artifact_builder as builder
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
    weights = folder / OnnxTarget.weights_file
    weights.parent.mkdir(parents=True)
    packed = replace(builder.pack(checkpoint, shape, weights), file=OnnxTarget.weights_file)
    traced = {f"{one}.b{batch}": trace(one, batch, *unwritten_model(shape), shape) for one, batch in keys}

    def content(graph: GraphSpec) -> bytes:
        file = folder / OnnxTarget.graph_file(graph.key)
        if graph.key not in traced:
            return graph.key.encode()
        write_onnx(traced[graph.key], shape, opset, weights, file)
        return file.read_bytes()

    return builder.write_artifact(
        folder,
        shape,
        packed,
        state_table(shape),
        emit="onnx",
        content=content,
        graph_tensors={key: graph.spec.tensors for key, graph in traced.items()},
    )
