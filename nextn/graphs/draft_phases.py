"""The phases that run NextN: seed, draft extend, draft step. Source: docs/design.md, "Graphs"."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.control import draw_rows, read_field, with_fields
from nextn.graphs.ops.rows import read_rows, write_rows
from nextn.graphs.phase import Phase
from nextn.graphs.window import Window
from nextn.runtime.contract.blocks import Control, Result


class Drafting(Phase):
    """The base of the phases that run NextN."""

    def draft(self, streams: Tensor, ids: Tensor, window: Window) -> Tensor:
        """Streams `[T, M, H]` of the window's positions, ids `[T]` one position later -> own streams."""
        return self.model.nextn.draft(
            streams,
            self.model.embed_tokens(ids),
            ids,
            window,
            self.model.rope_plain,
            self.state.get_buffer("nextn_window"),
        )

    def keep_draft(self, own_streams: Tensor, control: Tensor, step: Tensor, position: Tensor) -> None:
        """Draw draft number `step [B]` for `position [B]` from own streams `[B, M, H]`, and keep both."""
        write_rows(self.state.get_buffer("nextn_stream"), self.slots, own_streams.flatten(1))
        logits = self.model.logits(self.model.nextn.hidden(own_streams))
        drawn = draw_rows(logits, control, position[:, None])  # [B, 1]
        draft = read_field(control, Control.DRAFT)
        here = torch.arange(draft.shape[1]) == step[:, None]  # [B, MAX_STEPS]
        fields = {Control.STEP: step[:, None] + 1, Control.DRAFT: torch.where(here, drawn, draft)}
        self.write_control(with_fields(control, fields))


class Seed(Drafting):
    """NextN over the prompt's last W pairs; only the last pair's draft is needed.

    The other pairs matter through their key-value rows alone, and a key-value row depends on its own pair
    only, so they skip attention and experts (docs/mathematics.md, "NextN layer").
    """

    def forward(self) -> tuple[()]:
        control = self.control_rows()
        bonus = read_field(control, Control.BONUS)
        end = read_field(control, Control.POS)[:, 0]  # [1]
        rows = self.shape.config.sliding_window
        window = self.window(end - rows, rows)
        tokens = self.state.get_buffer("tokens")
        later = window.ring_rows(tokens, self.shape.ring_rows, window.positions[:, 1:])  # [1, W - 1, 1]
        ids = torch.cat([later[:, :, 0], bonus], dim=1).reshape(-1)  # [W], token i + 1 of pair i
        fused = self.model.nextn.fuse(self.read_streams(window), self.model.embed_tokens(ids))
        self.write_pairs(fused, window)
        last = self.window(end - 1, 1)
        own = self.draft(self.read_streams(last), bonus[:, 0], last)
        self.keep_draft(own, control, torch.zeros_like(end), end + 1)
        return ()

    def write_pairs(self, fused: Tensor, window: Window) -> None:
        """Key-value rows of the pairs that exist; a prompt shorter than W has fewer."""
        ring = self.state.get_buffer("nextn_window")
        self.model.nextn.write_window_only(fused, window, self.model.rope_plain, ring)


class DraftExtend(Drafting):
    """NextN over the accepted path with Target streams; drafts from its last accepted row."""

    def forward(self) -> tuple[()]:
        control = self.control_rows()
        result = read_rows(self.state.get_buffer("result"), self.slots)
        count = read_field(result, Result.OUT_COUNT)[:, 0]
        position = read_field(control, Control.POS)[:, 0]
        rows = self.shape.window_rows
        window = self.window(position - count, rows)
        ids = read_field(result, Result.OUT)[:, :rows].reshape(-1)  # [T]
        own = self.draft(self.read_streams(window), ids, window)  # [T, M, H]
        selected = torch.arange(window.batch) * rows + torch.clamp(count - 1, min=0)
        self.keep_draft(read_rows(own, selected), control, torch.zeros_like(position), position + 1)
        return ()


class DraftStep(Drafting):
    """NextN on its own streams; the control block holds the number of the step."""

    def forward(self) -> tuple[()]:
        control = self.control_rows()
        step = read_field(control, Control.STEP)[:, 0]
        draft = read_field(control, Control.DRAFT)
        previous = torch.arange(draft.shape[1]) == (step - 1)[:, None]
        ids = (draft * previous).sum(1)  # [B], the draft of the step before
        start = read_field(control, Control.POS)[:, 0] + step - 1
        streams = read_rows(self.state.get_buffer("nextn_stream"), self.slots)
        streams = streams.unflatten(-1, (self.shape.config.hc_mult, -1))  # [B, M, H]
        own = self.draft(streams, ids, self.window(start, 1))
        self.keep_draft(own, control, step, start + 2)
        return ()
