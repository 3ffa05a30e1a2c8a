"""Index arithmetic of the flat buffers: every live row at its place, once; all else in the scratch slot."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.graphs.window import Window

SLOTS = 3


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Distinct live slots or the scratch slot, any start (the seed's may be negative), any valid count."""
    slots = draw(st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS))
    slots += [SLOTS] * draw(st.integers(0 if slots else 1, 2))
    num_rows = draw(st.integers(1, 20))
    starts = draw(st.lists(st.integers(-10, 300), min_size=len(slots), max_size=len(slots)))
    counts = draw(st.lists(st.integers(0, num_rows), min_size=len(slots), max_size=len(slots)))
    return Window(torch.tensor(slots), torch.tensor(starts), torch.tensor(counts), num_rows, SLOTS)


@given(windows(), st.integers(1, 25))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_ring_writes(window, rows_per_slot):
    """The newest real rows of each slot are written once each; padding and the rest go to scratch."""
    index = window.ring_write_index(rows_per_slot)
    scratch = range(SLOTS * rows_per_slot, (SLOTS + 1) * rows_per_slot)
    live = []
    for b in range(window.batch):
        slot, start, count = (int(value[b]) for value in (window.slots, window.start, window.count))
        for row in range(window.num_rows):
            position, found = start + row, int(index[b, row])
            kept = count - rows_per_slot <= row < count and position >= 0
            if kept and slot != SLOTS:
                assert found == slot * rows_per_slot + position % rows_per_slot
                live.append(found)
            else:
                assert found in scratch
    assert len(set(live)) == len(live)


@given(windows(), st.integers(1, 25), st.integers(0, 12))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_earlier_rows(window, rows_per_slot, num_earlier):
    """Each row comes from its slot's place of its position; before position 0 it is 0 whatever lies there."""
    ring = torch.arange((SLOTS + 1) * rows_per_slot, dtype=torch.float32)[:, None] + 1
    ring[SLOTS * rows_per_slot :] = torch.nan
    found = window.earlier_rows(ring, rows_per_slot, num_earlier)
    assert found.shape == (window.batch, num_earlier, 1)
    for b in range(window.batch):
        slot, start = int(window.slots[b]), int(window.start[b])
        for column, position in enumerate(range(start - num_earlier, start)):
            if position < 0:
                assert found[b, column] == 0
            elif slot != SLOTS:
                assert found[b, column] == slot * rows_per_slot + position % rows_per_slot + 1


@given(windows(), st.integers(1, 40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_entry_writes(window, rows_per_slot):
    """Usable entries within capacity keep their place, the rest goes to scratch."""
    entries = torch.arange(6).expand(window.batch, -1) + torch.clamp(window.start, min=0)[:, None] // 4
    usable = entries % 2 == 0
    index = window.entry_index(entries, usable, rows_per_slot)
    for b in range(window.batch):
        for column in range(6):
            entry, slot = int(entries[b, column]), int(window.slots[b])
            if entry % 2 == 0 and entry < rows_per_slot:
                assert index[b, column] == slot * rows_per_slot + entry
            else:
                assert index[b, column] // rows_per_slot == SLOTS


@given(windows())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_reach(window):
    """A real row knows the positions up to its own; padding knows no position beyond the real rows."""
    for b in range(window.batch):
        start, count = int(window.start[b]), int(window.count[b])
        expected = [min(start + row + 1, start + count) for row in range(window.num_rows)]
        assert window.reach[b].tolist() == expected
