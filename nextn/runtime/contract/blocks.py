"""Field offsets of the control block and the result block (docs/design.md, "Control and result blocks").

The control block is everything a round needs to know about a request; the result block is everything
the host needs to know about a round. Both are plain `state` tensors `[slots + 1, WIDTH]` of int64, so
one copy of the result block per round is the only device-to-host traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_STEPS = 8
"""Largest `speculative_num_steps`; the draft field and the result block are sized for it."""

MAX_WINDOW_ROWS = MAX_STEPS + 1
"""n_max: rings are sized for this many rows per round whatever k is, so prefill does not depend on k."""

MAX_EOS = 8
"""EOS ids a request may carry; unused entries hold -1."""

TEMPERATURE_ONE = 1 << 20
"""Fixed-point 1.0 of the `temperature` field (exact in float32 for every multiple of 2**-20 below 16)."""


@dataclass(frozen=True)
class Field:
    """A run of `length` int64 values starting at column `offset` of a block row."""

    offset: int
    length: int = 1

    @property
    def columns(self) -> slice:
        return slice(self.offset, self.offset + self.length)


class Control:
    """Columns of `control`; one row per slot, the last row belongs to the scratch slot."""

    POS = Field(0)
    """Absolute position of the bonus token = number of committed rows."""
    BONUS = Field(1)
    """Token at position `pos`; drawn, not yet run through the Target."""
    REMAINING = Field(2)
    """Tokens this request may still emit."""
    FINISHED = Field(3)
    """1 once EOS was emitted or `remaining` reached 0; a finished row no longer advances."""
    STEP = Field(4)
    """Number of drafts already drawn for the next round; the draft step reads and advances it."""
    SEED = Field(5)
    TEMPERATURE = Field(6)
    """Fixed point, `TEMPERATURE_ONE` = 1.0; 0 = greedy."""
    TOP_K = Field(7)
    TOP_P = Field(8)
    MIN_P = Field(9)
    PROMPT_LENGTH = Field(10)
    EOS = Field(11, MAX_EOS)
    DRAFT = Field(19, MAX_STEPS)
    RESERVED = Field(27, 5)
    """Room for further request settings; unused."""
    WIDTH = 32


class Result:
    """Columns of `result`; rewritten for every slot a graph replays."""

    OUT = Field(0, MAX_WINDOW_ROWS)
    """Emitted tokens; only the first `out_count` are meaningful."""
    OUT_COUNT = Field(9)
    """Tokens emitted this round, after `remaining` and EOS; 0 for a finished row."""
    ACCEPTED = Field(10)
    """Matched drafts before trimming, -1 for a row that was already finished (and in prefill)."""
    FINISHED = Field(11)
    POS = Field(12)
    """`pos` after the round."""
    RESERVED = Field(13, 3)
    """Room for what a round with logprobs must tell; unused."""
    WIDTH = 16


def field_offsets(block: type) -> dict[str, list[int]]:
    """`{lower-case field name: [offset, length]}` of a block, as the manifest records it."""
    return {
        name.lower(): [value.offset, value.length]
        for name, value in vars(block).items()
        if isinstance(value, Field)
    }
