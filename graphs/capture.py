"""Graphs captured in process: each is recorded once on an accelerator's stream and then replayed by one call.

One code path for every accelerator of torch whose graphs look like CUDA's; `npu` is Ascend's torch_npu. All
lengths, positions and slots are device tensors, so nothing is updated from the host between replays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from nextn.graphs.driver import GraphKey, Session
from nextn.graphs.model import Model
from nextn.graphs.phases import build_graph, graph_keys
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State, input_table
from nextn.runtime.contract.errors import UsageError

_GRAPH_TYPES = {"cuda": "CUDAGraph", "npu": "NPUGraph"}

WARM_UPS = 2
"""Runs before a capture: libraries set up handles and workspaces in the first, allocators in the next."""


def captured_graphs(
    model: Model, state: State, shape: SessionShape, device: str, keys: Sequence[GraphKey] | None = None
) -> dict[GraphKey, Callable[[], None]]:
    """Captures every graph of `shape` on `device`, over one stream and one memory pool.

    Args:
        model, state: on `device` already; their buffers are what the graphs are captured over, so neither may
            be replaced afterwards. State is as fresh when this returns.
        device: `cuda` or `npu`.
        keys: the graphs to capture; all if None.

    Raises UsageError for a device without such graphs.
    """
    if device not in _GRAPH_TYPES:
        raise UsageError("no graph capture on this device", expected="|".join(_GRAPH_TYPES), found=device)
    accelerator: Any = torch.get_device_module(device)
    stream = accelerator.Stream()
    pool = None
    replays: dict[GraphKey, Callable[[], None]] = {}
    with torch.no_grad(), torch.device(device):
        _serve_scratch(state, shape)
        for key in keys or graph_keys(shape):
            module = build_graph(*key, model, state, shape)
            graph = getattr(accelerator, _GRAPH_TYPES[device])()
            _warm_up(module, accelerator, stream)
            with accelerator.graph(graph, pool=pool, stream=stream):
                module()
            pool = pool or graph.pool()
            replays[key] = graph.replay
        _make_fresh(state)
    return replays


class DeviceSession(Session):
    """A session whose state is on an accelerator: results come to the host in one copy per round."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._slots: dict[str, list[int]] = {}

    def fetch_results(self) -> None:
        """Waits for the device."""
        self.results = self.state.get_buffer("result").cpu()

    def choose_slots(self, name: str, slots: list[int]) -> None:
        """Copies only when the slots of a bucket change."""
        if self._slots.get(name) != slots:
            super().choose_slots(name, slots)
            self._slots[name] = slots


def _serve_scratch(state: State, shape: SessionShape) -> None:
    """Slots as padding has them: what runs during warm-up and capture touches no live slot."""
    for tensor in input_table(shape):
        buffer = state.get_buffer(tensor.name)
        buffer.fill_(state.scratch_slot if "slot" in tensor.name else 0)


def _warm_up(module: nn.Module, accelerator: Any, stream: Any) -> None:
    stream.wait_stream(accelerator.current_stream())
    with accelerator.stream(stream):
        for _ in range(WARM_UPS):
            module()
    accelerator.current_stream().wait_stream(stream)
    accelerator.synchronize()


def _make_fresh(state: State) -> None:
    for buffer in state.buffers():
        buffer.zero_()
    state.reset_scratch()
