"""`Device`: where graphs run, and how a program becomes something that one call replays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nextn.runtime.executors.capture.requirements import GRAPH_TYPES

WARM_UPS = 2
"""Runs before a capture: libraries set up handles and workspaces in the first, allocators in the next."""

_FRACTAL_NZ = 29
"""`ACL_FORMAT_FRACTAL_NZ`: tiles of 16 x 32 bytes, which an NPU's matrix unit reads without rearranging."""


class Device:
    """A device of torch by its name, `npu`, `cuda` or `cpu`; of several, the first one that is visible.

    `npu` and `cuda` go through the same calls: torch_npu's module looks like torch's own for CUDA.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._module: Any = torch.get_device_module(name)
        self._entered = threading.local()
        if name == "cpu":
            # Thousands of small operators: a second thread only adds waiting.
            torch.set_num_threads(1)

    def enter(self) -> None:
        """Chooses the device for the calling thread; a thread that never did has no context on an NPU."""
        if not hasattr(self._entered, "done"):
            self._module.set_device("cpu" if self.name == "cpu" else 0)
            self._entered.done = True

    def take(self, host: Tensor) -> Tensor:
        """A copy of a tensor, of its own also where the device is the host."""
        return host.to(self.name, copy=True)

    def take_weight(self, host: Tensor, layout: str) -> Tensor:
        """The weight for the device's products; `layout` is how the file stores it.

        Int8 matrices `[..., out, in]` are multiplied transposed, so on an NPU the transpose is what lies in
        the blocks its matrix unit reads (FRACTAL_NZ); what is returned is a view of that.
        """
        weight = host.to(self.name)
        if layout != "int8_row" or self.name != "npu":
            return weight
        import torch_npu

        self._module.config.allow_internal_format = True
        turned = weight.transpose(-2, -1).contiguous()
        blocks: Tensor = torch_npu.npu_format_cast(turned, _FRACTAL_NZ)
        return blocks.transpose(-2, -1)

    def staging(self, like: Tensor) -> Tensor:
        """Memory of the host from and to which the device copies by itself."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=self.name != "cpu")

    def wait(self) -> None:
        """For everything the calling thread asked for."""
        if self.name != "cpu":
            self._module.current_stream().synchronize()

    def recorder(self) -> Recorder:
        return Recorder() if self.name == "cpu" else CapturingRecorder(self._module, GRAPH_TYPES[self.name])


class Recorder:
    """Programs as they are: the host has no graphs to capture."""

    def record(self, program: Callable[[], object]) -> Callable[[], object]:
        """What one call replays; runs the program at least once, on what its tensors hold."""
        program()
        return program

    def close(self) -> None:
        """Frees what was recorded; none of it may be called afterwards."""


class CapturingRecorder(Recorder):
    """The graphs of one session, captured over one stream and one memory pool.

    They are replayed one after the other and leave nothing in the pool that another may not overwrite.
    """

    def __init__(self, module: Any, graph_type: str) -> None:
        self._module = module
        self._graph_type = graph_type
        self._stream = module.Stream()
        self._graphs: list[Any] = []

    def record(self, program: Callable[[], object]) -> Callable[[], object]:
        self._warm_up(program)
        graph = getattr(self._module, self._graph_type)()
        pool = self._graphs[0].pool() if self._graphs else None
        # Other threads may decode meanwhile, and wait for the device.
        mode = "thread_local"
        with self._module.graph(graph, pool=pool, stream=self._stream, capture_error_mode=mode):
            program()
        self._graphs.append(graph)
        replay: Callable[[], object] = graph.replay
        return replay

    def close(self) -> None:
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()

    def _warm_up(self, program: Callable[[], object]) -> None:
        current = self._module.current_stream()
        self._stream.wait_stream(current)
        with self._module.stream(self._stream):
            for _ in range(WARM_UPS):
                program()
        current.wait_stream(self._stream)
        current.synchronize()
