"""`Phase`: the base of all graphs, as modules over one `Model` and one `State`.

A phase takes no arguments and returns nothing. Phases hand results on through state, so `round` is the
sequence of its phases and cannot differ from them (docs/design.md, "Graphs").
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nextn.graphs.model import Model
from nextn.graphs.ops.rows import read_rows, write_rows
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.graphs.window import Window


class Phase(nn.Module):
    """A part of a graph; reads its slots from `slots_input`, and reaches their blocks and streams."""

    def __init__(self, model: Model, state: State, shape: SessionShape, slots_input: str) -> None:
        super().__init__()
        self.model = model
        self.state = state
        self.shape = shape
        self.slots_input = slots_input

    @property
    def slots(self) -> Tensor:
        return self.state.get_buffer(self.slots_input)  # [B]

    def control_rows(self) -> Tensor:
        return read_rows(self.state.get_buffer("control"), self.slots)  # [B, F]

    def window(self, start: Tensor, num_rows: int, count: Tensor | None = None) -> Window:
        full = torch.full_like(start, num_rows) if count is None else count
        return Window(self.slots, start, full, num_rows, self.shape.slots)

    def write_control(self, rows: Tensor) -> None:
        write_rows(self.state.get_buffer("control"), self.slots, rows)

    def write_result(self, rows: Tensor) -> None:
        write_rows(self.state.get_buffer("result"), self.slots, rows)

    def write_streams(self, window: Window, streams: Tensor) -> None:
        ring = self.state.get_buffer("target_streams")
        write_rows(ring, window.ring_write_index(self.shape.ring_rows), streams.flatten(1))

    def read_streams(self, window: Window) -> Tensor:
        """Target streams of the window's positions: `[T, M, H]`."""
        ring = self.state.get_buffer("target_streams")
        rows = window.ring_rows(ring, self.shape.ring_rows, window.positions)  # [B, V, M * H]
        return rows.reshape(-1, self.shape.config.hc_mult, self.shape.config.hidden_size)


class Sequence(nn.Module):
    """Several phases as one graph: `round`, `decode` and `seed` are sequences."""

    def __init__(self, phases: list[Phase]) -> None:
        super().__init__()
        self.model = phases[0].model
        self.state = phases[0].state
        self.phases = phases

    def forward(self) -> tuple[()]:
        for phase in self.phases:
            phase()
        return ()
