"""An executor that runs graphs as eager modules, in the session's memory or in a memory of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from nextn.graphs.config import ModelConfig
from nextn.graphs.model import Model as EagerModel
from nextn.graphs.phases import build_graph
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.runtime.bindings.model import Model
from nextn.runtime.contract.manifest import Manifest
from nextn.weights.pack import load_packed

Call = tuple[str, ...]


def session_shape(manifest: Manifest) -> SessionShape:
    return SessionShape(
        ModelConfig.from_dict(manifest.model.config),
        manifest.target.dtype,
        manifest.speculation.num_steps,
        tuple(manifest.limits.batch_sizes),
        manifest.limits.max_seq_len,
        manifest.limits.prefill_chunk,
    )


class EagerExecutor:
    """With `apart`, nothing but what `write` and `read` name moves between the session and the graphs.

    `calls` is the log; a call whose first words are in `faults` raises the exception given for it.
    """

    def __init__(self, artifact: Path, manifest: Manifest, *, apart: bool = False) -> None:
        self.shape = session_shape(manifest)
        self.model = EagerModel(self.shape)
        self.model.load_weights(load_packed(artifact / manifest.weights.file))
        self.state = State(self.shape)
        self.apart = apart
        self.calls: list[Call] = []
        self.faults: dict[Call, BaseException] = {}
        self.memory: Mapping[str, memoryview] = {}
        self.graphs: dict[str, torch.nn.Module] = {}

    def attach(self, memory: Mapping[str, memoryview]) -> None:
        self._log("attach")
        self.memory = memory
        for name, buffer in list(self.state.named_buffers()):
            view = torch.frombuffer(memory[name], dtype=buffer.dtype).view(buffer.shape)
            setattr(self.state, name, view.clone() if self.apart else view)

    def load(self, graph: str) -> None:
        self._log("load", graph)
        name, _, batch = graph.partition(".b")
        self.graphs[graph] = build_graph(name, int(batch), self.model, self.state, self.shape)

    def write(self, name: str, start: int, stop: int) -> None:
        self._log("write", name)
        if self.apart:
            self._own_bytes(name)[start:stop] = torch.frombuffer(self.memory[name], dtype=torch.uint8)[
                start:stop
            ]

    def launch(self, graph: str) -> None:
        self._log("launch", graph)
        with torch.no_grad():
            self.graphs[graph]()

    def wait(self) -> None:
        self._log("wait")

    def read(self, name: str) -> None:
        self._log("read", name)
        if self.apart:
            torch.frombuffer(self.memory[name], dtype=torch.uint8).copy_(self._own_bytes(name))

    def close(self) -> None:
        self._log("close")

    def _own_bytes(self, name: str) -> torch.Tensor:
        return self.state.get_buffer(name).view(torch.uint8).view(-1)

    def _log(self, *call: str) -> None:
        self.calls.append(call)
        for length in (1, 2):
            if call[:length] in self.faults:
                raise self.faults[call[:length]]


def make(model: Model) -> EagerExecutor:
    return EagerExecutor(model.directory, model.manifest)
