"""`SessionGraphs`: the executor of one session, its state on the device and its graphs captured over it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from nextn.runtime.bindings.model import Model
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.graph_spec import StateSpec
from nextn.runtime.executors.capture.shared import Shared, host_tensor


class SessionGraphs:
    """An `Executor`. Lengths, positions and slots are on the device: a replay takes nothing of the host.

    Everything but a capture goes to the device's default stream, so that a replay follows earlier writes.
    """

    def __init__(self, model: Model) -> None:
        self._manifest = model.manifest
        self._shared = Shared.of(model)
        self._device = self._shared.device
        self._device.enter()
        self._recorder = self._device.recorder()
        self._host: dict[str, Tensor] = {}
        self._staged: dict[str, Tensor] = {}
        self._tensors: dict[str, Tensor] = {}
        self._replays: dict[str, Callable[[], object]] = {}

    def attach(self, memory: Mapping[str, memoryview]) -> None:
        manifest, slots = self._manifest, self._manifest.limits.slots
        with warnings.catch_warnings():
            # The weights' memory is read-only, which torch has no tensors for; nothing writes to them.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            weights = {
                weight.name: host_tensor(memory[weight.name], weight.storage.dtype, weight.storage.shape)
                for weight in manifest.weights.tensors
            }
        self._tensors |= self._shared.weights(weights)
        for spec in manifest.state:
            self._host[spec.name] = host_tensor(memory[spec.name], spec.dtype, spec.shape(slots))
        for tensor in manifest.inputs:
            self._host[tensor.name] = host_tensor(memory[tensor.name], tensor.dtype, tensor.shape)
        self._tensors |= {name: self._device.take(host) for name, host in self._host.items()}
        for name in ("control", "result", *(tensor.name for tensor in manifest.inputs)):
            self._staged[name] = self._device.staging(self._host[name])

    def load(self, graph: str) -> None:
        self._device.enter()
        program = self._shared.program(graph).over(self._tensors)
        with _explained(f"graph {graph} cannot be captured"), self._serving_scratch():
            self._replays[graph] = self._recorder.record(program)

    def write(self, name: str, start: int, stop: int) -> None:
        self._device.enter()
        host, staged, on_device = (
            tensors[name].view(-1) for tensors in (self._host, self._staged, self._tensors)
        )
        size = host.element_size()
        assert start % size == stop % size == 0, "the host writes whole values"
        part = slice(start // size, stop // size)
        # What was staged there before has arrived: a graph was launched after it, and waited for.
        staged[part].copy_(host[part])
        on_device[part].copy_(staged[part], non_blocking=True)

    def launch(self, graph: str) -> None:
        self._device.enter()
        with _explained(f"graph {graph} cannot be launched"):
            self._replays[graph]()

    def wait(self) -> None:
        self._device.enter()
        with _explained("the graphs that were launched failed"):
            self._device.wait()

    def read(self, name: str) -> None:
        self._device.enter()
        staged = self._staged.get(name)
        with _explained(f"{name} cannot be read from the device"):
            if staged is None:
                self._host[name].copy_(self._tensors[name])
                return
            staged.copy_(self._tensors[name], non_blocking=True)
            self._device.wait()
        self._host[name].copy_(staged)

    def close(self) -> None:
        self._replays.clear()
        self._recorder.close()
        for tensors in (self._tensors, self._staged, self._host):
            tensors.clear()

    @contextmanager
    def _serving_scratch(self) -> Iterator[None]:
        """Lets graphs run as padding does: whatever they write is scratch, and becomes what it was."""
        scratch = self._manifest.limits.slots
        for tensor in self._manifest.inputs:
            self._tensors[tensor.name].fill_(scratch if "slot" in tensor.name else 0)
        self._tensors["prompt_count"].fill_(1)
        yield
        self._make_scratch_fresh()

    def _make_scratch_fresh(self) -> None:
        scratch = self._manifest.limits.slots
        for tensor in self._manifest.inputs:
            self._tensors[tensor.name].copy_(self._host[tensor.name])
        for spec in self._manifest.state:
            rows = _rows_of(spec, scratch)
            self._tensors[spec.name][rows].copy_(self._host[spec.name][rows])


@contextmanager
def _explained(message: str) -> Iterator[None]:
    """torch's errors about a device as one line, which a host can print."""
    try:
        yield
    except RuntimeError as error:
        raise ExecutionError(message, found=error) from error


def _rows_of(spec: StateSpec, slot: int) -> slice:
    return slice(slot * spec.rows_per_slot, (slot + 1) * spec.rows_per_slot)
