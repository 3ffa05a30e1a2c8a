"""`SessionShape`: every number that fixes a tensor shape, chosen once before tracing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.collectives import ONE_RANK, Parallel
from nextn.graphs.ops.linear import StoredLayout
from nextn.runtime.contract.blocks import MAX_STEPS, MAX_WINDOW_ROWS
from nextn.runtime.contract.errors import UsageError


@dataclass(frozen=True)
class SessionShape:
    """Model architecture plus the sizes a compiled artifact is fixed to.

    `dtype` is the compute dtype of matrices, caches and streams (`float32` or `bfloat16`); everything else is
    fp32 either way (docs/mathematics.md, "Notation"). `stored_layouts` has the layout of each matrix that
    graphs take in another layout than the plain one, by its packed name. `entry_rows_multiples`, in rising
    order, round the compressed entries of a slot up: to a multiple of the largest that is smaller than their
    number, else of the first. Raises `UsageError` on values out of range.
    """

    config: ModelConfig
    dtype: str = "float32"
    num_steps: int = 3
    batch_sizes: tuple[int, ...] = (1,)
    max_seq_len: int = 4096
    prefill_chunk: int = 128
    stored_layouts: tuple[tuple[str, StoredLayout], ...] = ()
    entry_rows_multiples: tuple[int, ...] = (1,)
    parallel: Parallel = ONE_RANK

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
        self._check_layouts()
        multiples = self.entry_rows_multiples
        if not multiples or multiples[0] < 1 or tuple(sorted(set(multiples))) != multiples:
            raise UsageError(
                "bad multiples of entries",
                key="entry_rows_multiples",
                expected="rising integers >= 1",
                found=multiples,
            )
        if self.parallel.size != 1:
            raise UsageError(
                "weights are not split over ranks", key="parallel", expected="one rank", found=self.parallel
            )

    def _check_layouts(self) -> None:
        names = [name for name, _ in self.stored_layouts]
        if len(set(names)) != len(names):
            raise UsageError("a matrix has two layouts", key="stored_layouts", found=names)
        for name, layout in self.stored_layouts:
            if layout not in get_args(StoredLayout):
                raise UsageError(
                    "unknown layout", key=name, expected="|".join(get_args(StoredLayout)), found=layout
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
        """Rows per slot of a sliding-window ring: W + n_max - 1 (docs/design.md, "Ring sizes")."""
        return self.config.sliding_window + MAX_WINDOW_ROWS - 1

    def compressor_rows(self, ratio: int) -> int:
        """Rows per slot of a compressor ring: c * r + n_max - 1 (docs/design.md, "Ring sizes")."""
        return overlap(ratio) * ratio + MAX_WINDOW_ROWS - 1

    def entry_rows(self, ratio: int) -> int:
        """Compressed entries per slot; enough for a verify window that reaches past `max_seq_len`."""
        rows = -(-(self.max_seq_len + MAX_WINDOW_ROWS) // ratio)
        first, *larger = self.entry_rows_multiples
        multiple = max((one for one in larger if one < rows), default=first)
        return -(-rows // multiple) * multiple


def overlap(ratio: int) -> int:
    """The factor c: C4 entries overlap their predecessor, C128 entries do not.

    Source: docs/mathematics.md, "Compressor".
    """
    return 2 if ratio == 4 else 1
