"""`Shared`: what all sessions of one opened artifact have in common on its device, weights and programs."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from nextn.runtime.bindings.model import Model
from nextn.runtime.executors.capture.device import Device
from nextn.runtime.executors.capture.programs import Program

_LOCK = threading.Lock()


class Shared:
    """Made once for a model, by `of`; goes when the model is closed."""

    def __init__(self, model: Model) -> None:
        self.device = Device(model.device)
        self._folder = model.directory
        self._records = {graph.spec.key: graph for graph in model.manifest.graphs}
        self._layouts = {weight.name: weight.storage.layout for weight in model.manifest.weights.tensors}
        self._weights: dict[str, Tensor] | None = None
        self._programs: dict[str, Program] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, model: Model) -> Shared:
        with _LOCK:
            if not isinstance(model.shared, cls):
                model.shared = cls(model)
            return model.shared

    def weights(self, host: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The weights on the device, copied from the host by the first session alone."""
        with self._lock:
            if self._weights is not None:
                return self._weights
            weights = {
                name: self.device.take_weight(weight, self._layouts[name]) for name, weight in host.items()
            }
            if self.device.name != "cpu":  # there they are the session's own view of the file
                self._weights = weights
            return weights

    def program(self, graph: str) -> Program:
        with self._lock:
            if graph not in self._programs:
                record = self._records[graph]
                self._programs[graph] = Program(self._folder / record.file, record, self.device.name)
            return self._programs[graph]


def host_tensor(view: memoryview, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor over the bytes of `view`, which it shares."""
    return torch.frombuffer(view, dtype=getattr(torch, dtype)).view(shape)
