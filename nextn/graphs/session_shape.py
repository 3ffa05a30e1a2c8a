"""`SessionShape`: every number that fixes a tensor shape, chosen once before tracing."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.graphs.config import ModelConfig
from nextn.runtime.contract.blocks import MAX_STEPS, MAX_WINDOW_ROWS
from nextn.runtime.contract.errors import UsageError

_ENTRY_BLOCK, _SMALL_ENTRY_BLOCK = 128, 16
"""Rows of the blocks that `entries_in_blocks` fills; small ones where all entries fit into a large one."""


@dataclass(frozen=True)
class SessionShape:
    """Model architecture plus the sizes a compiled artifact is fixed to.

    `dtype` is the compute dtype of matrices, caches and streams (`float32` or `bfloat16`); what the
    spec keeps in fp32 (section 5.7c) stays fp32 either way. `int8_weights` are the names of the matrices that
    graphs take as int8 rows. With `entries_in_blocks` a slot's compressed entries fill whole blocks, as
    Ascend's paged operators read them. Raises `UsageError` on values out of range.
    """

    config: ModelConfig
    dtype: str = "float32"
    num_steps: int = 3
    batch_sizes: tuple[int, ...] = (1,)
    max_seq_len: int = 4096
    prefill_chunk: int = 128
    int8_weights: tuple[str, ...] = ()
    entries_in_blocks: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16"):
            raise UsageError("unsupported dtype", key="dtype", expected="float32|bfloat16", found=self.dtype)
        if not 0 <= self.num_steps <= MAX_STEPS:
            raise UsageError(
                "steps out of range", key="num_steps", expected=f"0..{MAX_STEPS}", found=self.num_steps
            )
        if not self.batch_sizes or any(size < 1 for size in self.batch_sizes):
            raise UsageError(
                "bad batch sizes", key="batch_sizes", expected="integers >= 1", found=self.batch_sizes
            )
        if tuple(sorted(set(self.batch_sizes))) != self.batch_sizes:
            raise UsageError("batch sizes not sorted and unique", key="batch_sizes", found=self.batch_sizes)
        if self.max_seq_len < 2:
            raise UsageError("sequence too short", key="max_seq_len", expected=">= 2", found=self.max_seq_len)
        if self.prefill_chunk < 1:
            raise UsageError(
                "chunk too short", key="prefill_chunk", expected=">= 1", found=self.prefill_chunk
            )

    @property
    def slots(self) -> int:
        """Requests decoded together; the slot with this index is the scratch slot."""
        return max(self.batch_sizes)

    @property
    def window_rows(self) -> int:
        """Rows of one verify window, n = k + 1."""
        return self.num_steps + 1

    @property
    def ring_rows(self) -> int:
        """Rows per slot of a sliding-window ring: W + n_max - 1 (spec section 5.7)."""
        return self.config.sliding_window + MAX_WINDOW_ROWS - 1

    def compressor_rows(self, ratio: int) -> int:
        """Rows per slot of a compressor ring: c * r + n_max - 1 (spec section 5.7)."""
        return overlap(ratio) * ratio + MAX_WINDOW_ROWS - 1

    def entry_rows(self, ratio: int) -> int:
        """Compressed entries per slot; covers the verify window that may reach past `max_seq_len`."""
        rows = -(-(self.max_seq_len + MAX_WINDOW_ROWS) // ratio)
        if not self.entries_in_blocks:
            return rows
        block = _ENTRY_BLOCK if rows > _ENTRY_BLOCK else _SMALL_ENTRY_BLOCK
        return -(-rows // block) * block


def overlap(ratio: int) -> int:
    """The factor c of spec section 5.2: C4 entries overlap their predecessor, C128 entries do not."""
    return 2 if ratio == 4 else 1
