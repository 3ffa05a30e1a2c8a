"""`Window`: V consecutive rows of B requests, and the index arithmetic of the flat state buffers.

One code path serves prefill (B = 1, V = chunk), decode (V = 1), verify and draft extend (V = n): a window
reads rows of earlier positions from the rings, uses its own rows directly, then writes its own rows. Rows
of earlier positions are always read before the window's rows replace them, so a chunk may exceed the ring.

Source: docs/design.md, "Windows: reading and writing order".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.graphs.ops.rows import read_rows
from nextn.graphs.ops.window_attention import known_positions


@dataclass(frozen=True)
class CompressedEntries:
    """The compressed entries of one layer, and the slots of the requests that read them.

    rows `[(slots + 1) * capacity, D]`: for each slot `capacity` consecutive entries, of `ratio` positions
    each; slots int64 `[B]`.
    """

    rows: Tensor
    slots: Tensor
    capacity: int
    ratio: int


@dataclass(frozen=True)
class Window:
    """Positions `start .. start + num_rows - 1` of the requests in `slots`.

    slots, start, count: int64 `[B]`; only the first `count` rows are real, the rest is padding whose
    writes go to the scratch slot.
    """

    slots: Tensor
    start: Tensor
    count: Tensor
    num_rows: int
    scratch_slot: int

    @property
    def batch(self) -> int:
        return self.slots.shape[0]

    @property
    def offsets(self) -> Tensor:
        return torch.arange(self.num_rows)  # [V]

    @property
    def positions(self) -> Tensor:
        return self.start[:, None] + self.offsets  # [B, V]

    @property
    def reach(self) -> Tensor:
        """The number of positions that each row knows, int64 `[B, V]`."""
        return known_positions(self.start, self.count, self.num_rows)

    def rows_per_slot(self, buffer: Tensor) -> int:
        """Rows of one slot in `buffer [(slots + 1) * rows, D]`."""
        return buffer.shape[0] // (self.scratch_slot + 1)

    def entries(self, rows: Tensor, ratio: int) -> CompressedEntries:
        """The entries `rows` of a layer of `ratio`, for the requests of this window."""
        return CompressedEntries(rows, self.slots, self.rows_per_slot(rows), ratio)

    def ring_write_index(self, rows_per_slot: int) -> Tensor:
        """Flat ring row of each window row `[B, V]`.

        Padding, positions before 0 and rows that a later row of the window overwrites go to scratch.
        """
        positions = self.positions
        newest = self.offsets >= (self.count - rows_per_slot)[:, None]  # [B, V]
        live = newest & (self.offsets < self.count[:, None]) & (positions >= 0)
        slot = torch.where(live, self.slots[:, None], self.scratch_slot)
        return slot * rows_per_slot + positions % rows_per_slot

    def earlier_rows(self, ring: Tensor, rows_per_slot: int, num_earlier: int) -> Tensor:
        """Rows of the `num_earlier` positions before `start`: `[B, num_earlier, D]`, 0 before position 0."""
        positions = self.start[:, None] + torch.arange(-num_earlier, 0)  # [B, earlier]
        return self.ring_rows(ring, rows_per_slot, positions)

    def ring_rows(self, ring: Tensor, rows_per_slot: int, positions: Tensor) -> Tensor:
        """Ring rows at absolute `positions [B, P]`: `[B, P, D]`; negative positions read as 0.

        The masked rows are zeroed, not only hidden from the softmax: 0 * NaN is NaN.
        """
        valid = positions >= 0
        slot = torch.where(valid, self.slots[:, None], self.scratch_slot)
        rows = read_rows(ring, slot * rows_per_slot + positions % rows_per_slot)  # [B, P, D]
        return torch.where(valid[..., None], rows, 0)

    def entry_index(self, number: Tensor, usable: Tensor, capacity: int) -> Tensor:
        """Flat index of the entries of `number [B, J]`; where not `usable` or past capacity: scratch."""
        usable = usable & (number < capacity)
        slot = torch.where(usable, self.slots[:, None], self.scratch_slot)
        return slot * capacity + number % capacity
