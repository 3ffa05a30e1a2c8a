"""The phases that run the Target, and acceptance: prefill, verify, accept.

Source: docs/design.md, "Graphs".
"""

from __future__ import annotations

import torch

from nextn.graphs.accept import accept_round, advanced_control, emit, result_rows
from nextn.graphs.control import draw_rows, read_field, with_fields
from nextn.graphs.model import Model
from nextn.graphs.ops.rows import read_rows, write_rows
from nextn.graphs.phase import Phase
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.runtime.contract.blocks import Control, Result


class Prefill(Phase):
    """Target over one chunk of a prompt; the last chunk draws and emits the first token."""

    def forward(self) -> tuple[()]:
        control = self.control_rows()
        start = read_field(control, Control.POS)[:, 0]
        count = self.state.get_buffer("prompt_count")
        ids = self.state.get_buffer("prompt_tokens")  # [C]
        window = self.window(start, self.shape.prefill_chunk, count)
        streams = self.model.target(ids, window, self.state)  # [C, M, H]
        self.write_streams(window, streams)
        tokens = self.state.get_buffer("tokens")
        write_rows(tokens, window.ring_write_index(self.shape.ring_rows), ids[:, None])

        end = start + count
        logits = self.model.logits(self.model.target_hidden(read_rows(streams, count - 1)))
        drawn = draw_rows(logits, control, end[:, None])  # [1, 1]
        is_last = end >= read_field(control, Control.PROMPT_LENGTH)[:, 0]
        emission = emit(control, drawn, is_last.to(torch.int64))
        self.write_control(advanced_control(control, emission, end))
        self.write_result(result_rows(drawn, emission, torch.full_like(end, -1), end))
        return ()


class WindowPhase(Phase):
    """A phase of a round over windows of `num_rows`: k + 1 rows, or 1 in plain decoding."""

    def __init__(
        self, model: Model, state: State, shape: SessionShape, slots_input: str, num_rows: int
    ) -> None:
        super().__init__(model, state, shape, slots_input)
        self.num_rows = num_rows


class Verify(WindowPhase):
    """Target over `[bonus, d1 .. dk]`; writes the streams for the extend and the drawn tokens for accept."""

    def forward(self) -> tuple[()]:
        control = self.control_rows()
        window = self.window(read_field(control, Control.POS)[:, 0], self.num_rows)
        draft = read_field(control, Control.DRAFT)[:, : self.num_rows - 1]
        ids = torch.cat([read_field(control, Control.BONUS), draft], dim=1).reshape(-1)  # [T]
        streams = self.model.target(ids, window, self.state)  # [T, M, H]
        self.write_streams(window, streams)
        logits = self.model.logits(self.model.target_hidden(streams))
        drawn = draw_rows(logits, control, window.positions + 1)  # [B, n]
        result = read_rows(self.state.get_buffer("result"), self.slots)
        self.write_result(with_fields(result, {Result.OUT: drawn}))
        return ()


class Accept(WindowPhase):
    """Acceptance of the drawn tokens; advances `pos` and writes the result block."""

    def forward(self) -> tuple[()]:
        result = read_rows(self.state.get_buffer("result"), self.slots)
        drawn = read_field(result, Result.OUT)[:, : self.num_rows]
        control, result = accept_round(self.control_rows(), drawn)
        self.write_control(control)
        self.write_result(result)
        return ()
