"""The compile worker, whose graph `decode` is one of three nodes: all else, the compiler too, is real.

The other graphs, which would take as long again, are files of one byte.
"""

import hashlib
import json
import sys
from pathlib import Path
from unittest import mock

import torch

from nextn.compile.build import trace, worker
from nextn.graphs.model import Model
from nextn.graphs.phases import graph_rows
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.runtime.contract.graph_spec import GraphSpec


class Stub(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counter", torch.zeros(4))

    def forward(self) -> None:
        self.counter.add_(torch.cos(self.counter))


def stub(name: str, batch: int, model: Model, state: State, shape: SessionShape) -> trace.TracedGraph:
    program = torch.export.export(Stub(), (), strict=False)
    return trace.TracedGraph(GraphSpec(name, batch, graph_rows(name, shape), ()), program)


def write_byte(job: worker.GraphJob) -> None:
    job.output.write_bytes(b"?")
    record = {"name": job.name, "batch": job.batch, "rows": 1, "tensors": [], "returns": None}
    sha256 = hashlib.sha256(b"?").hexdigest()
    job.description.write_text(json.dumps(record | {"bytes": 1, "sha256": sha256}))


if __name__ == "__main__":
    job = worker.GraphJob.from_json(Path(sys.argv[1]).read_text())
    if job.name != "decode":
        sys.exit(write_byte(job))
    with mock.patch.object(trace, "trace", stub):
        sys.exit(worker.main())
