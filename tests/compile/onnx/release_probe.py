"""Writes graphs of a release at its real size beside weights of which only a header exists; JSON of each."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import onnx
import torch

from nextn.compile.build.trace import declared_weights, trace, unwritten_model
from nextn.compile.cli.trace_report import peak_memory
from nextn.compile.targets.onnx.onnx_program import write_onnx
from nextn.compile.targets.onnx.target import DEFAULT_OPSET
from nextn.compile.targets.target import WEIGHTS_FILE
from nextn.graphs.session_shape import SessionShape
from nextn.weights.aligned_file import PlannedTensor, plan_file
from nextn.weights.config_json import read_model_config


def write_header(file: Path, shape: SessionShape) -> int:
    """A packed file of nothing but holes after its header; its size."""
    plan = plan_file(
        PlannedTensor(one.name, getattr(torch, one.dtype), one.shape) for one in declared_weights(shape)
    )
    with open(file, "wb") as weights:
        weights.write(plan.header)
        weights.truncate(plan.nbytes)
    return plan.nbytes


def main(folder: str, dtype: str, *graphs: str) -> None:
    torch.set_num_threads(1)
    shape = SessionShape(read_model_config(Path(folder))[0], dtype=dtype)
    packed = Path(folder) / "packed"
    packed.mkdir()
    size = write_header(packed / WEIGHTS_FILE, shape)
    for name in graphs:
        started = time.process_time()
        model, state = unwritten_model(shape)
        output = Path(folder) / f"{name}.b1.onnx"
        write_onnx(trace(name, 1, model, state, shape), shape, DEFAULT_OPSET, packed / WEIGHTS_FILE, output)
        graph = onnx.load(output, load_external_data=False).graph
        external = [one for one in graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL]
        found = {
            "graph": name,
            "nodes": len(graph.node),
            "outputs": len(graph.output),
            "bytes": output.stat().st_size,
            "weights": len(external),
            "weight_file_bytes": size,
            "weight_bytes_on_disk": sum(
                file.stat().st_blocks * 512 for file in Path(folder).rglob(WEIGHTS_FILE)
            ),
            "cpu_seconds": round(time.process_time() - started, 1),
            "peak_bytes": peak_memory(),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
