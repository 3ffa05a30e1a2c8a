"""Traces one graph on fake tensors in a process of its own: nodes, seconds and peak memory as JSON."""

import json
import sys
import time
from pathlib import Path

import torch

from nextn.compile.build.trace import trace
from nextn.compile.cli.trace_report import fake_model, peak_memory
from nextn.graphs.session_shape import SessionShape
from nextn.weights.config_json import read_model_config


def main(config: str, graph: str, max_seq_len: str) -> None:
    torch.set_num_threads(1)
    shape = SessionShape(read_model_config(Path(config))[0], max_seq_len=int(max_seq_len))
    started = time.process_time()
    model, state = fake_model(shape)
    traced = trace(graph, 1, model, state, shape)
    print(
        json.dumps(
            {
                "nodes": len(traced.program.graph.nodes),
                "cpu_seconds": time.process_time() - started,
                "peak_bytes": peak_memory(),
                "weight_bytes": sum(t.nbytes for t in traced.spec.tensors if t.kind == "weight"),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
