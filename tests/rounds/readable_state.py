"""Which rows of the state a request may still read, given only the position it stands at.

A request at rest at position p has committed rows 0 .. p - 1 and holds a bonus token at p. Its next graph
starts at p, so of everything in the buffers it can read:

* sliding-window rings, NextN's among them: the W - 1 positions before p;
* compressor rings: the positions before p that a block not yet complete pools;
* compressed entries: the complete ones, below p // ratio;
* the target streams of p - 1; right after the prompt also the streams and tokens that the seed needs.

Everything else may hold anything, NaN included; `poison_unreadable` is how tests prove this list complete.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.session_shape import SessionShape, overlap
from nextn.graphs.state import State, state_table
from nextn.runtime.contract.blocks import Control

Snapshot = dict[str, Tensor]

CONTROL_FIELDS = (
    Control.POS,
    Control.BONUS,
    Control.REMAINING,
    Control.FINISHED,
    Control.SEED,
    Control.TEMPERATURE,
    Control.EOS,
)
DRAFTING = ("draft", "nextn_window")
"""What only speculation fills."""


def readable_positions(shape: SessionShape, position: int, *, unseeded: bool = False) -> dict[str, range]:
    """Per buffer the absolute positions (for entries: the numbers) readable at `position`.

    `unseeded`: the prompt has been run, the seed not yet.
    """
    window = shape.config.sliding_window
    earlier = range(max(0, position - (window - 1)), position)
    prompt_tail = range(max(0, position - window), position)
    found = {
        "tokens": prompt_tail if unseeded else range(0),
        "target_streams": prompt_tail if unseeded else range(max(0, position - 1), position),
        "nextn_stream": range(0),
    }
    if shape.num_steps > 0:
        found["nextn_window"] = range(0) if unseeded else earlier
    for layer, ratio in enumerate(shape.config.compress_ratios):
        found[f"window_{layer}"] = earlier
        for prefix in {0: (), 4: ("", "indexer_"), 128: ("",)}[ratio]:
            oldest = (position // ratio + 1 - overlap(ratio)) * ratio  # of the block not yet complete
            found[f"{prefix}ring_{layer}"] = range(max(0, oldest), position)
            found[f"{prefix}entries_{layer}"] = range(position // ratio)
    return found


def control_of(state: State, slot: int) -> list[int]:
    """The whole control row of a slot."""
    values: list[int] = state.get_buffer("control")[slot].tolist()
    return values


def position_of(state: State, slot: int) -> int:
    return control_of(state, slot)[Control.POS.offset]


def readable_state(state: State, shape: SessionShape, slot: int, *, unseeded: bool = False) -> Snapshot:
    """A copy of everything slot `slot` may still read, by buffer; rows in order of position."""
    control = state.get_buffer("control")[slot]
    found = {
        "control": torch.cat([control[field.columns] for field in CONTROL_FIELDS]),
        "draft": control[Control.DRAFT.columns][: shape.num_steps].clone(),
    }
    position = position_of(state, slot)
    rows_per_slot = {spec.name: spec.rows_per_slot for spec in state_table(shape)}
    for name, positions in readable_positions(shape, position, unseeded=unseeded).items():
        rows = _flat_rows(positions, rows_per_slot[name], slot)
        found[name] = state.get_buffer(name)[rows].clone()  # [positions, D]
    return found


def poison_unreadable(state: State, shape: SessionShape, slots: list[int], value: float) -> list[str]:
    """Overwrite each floating-point row that none of the resting `slots` may read; names of hit buffers."""
    keep = {slot: readable_positions(shape, position_of(state, slot)) for slot in slots}
    hit = []
    for spec in state_table(shape):
        buffer = state.get_buffer(spec.name)
        if not buffer.is_floating_point():
            continue
        spare = torch.ones(buffer.shape[0], dtype=torch.bool)
        for slot, positions in keep.items():
            spare[_flat_rows(positions[spec.name], spec.rows_per_slot, slot)] = False
        if spare.any():
            buffer[spare] = value
            hit.append(spec.name)
    return hit


def assert_same_state(
    found: Snapshot, expected: Snapshot, tolerance: float, *, leave_out: tuple[str, ...] = ()
) -> None:
    """Integers equal, floating-point rows within `tolerance`."""
    assert found.keys() == expected.keys()
    for name in found.keys() - set(leave_out):
        assert found[name].shape == expected[name].shape, name
        if found[name].is_floating_point():
            difference = (found[name] - expected[name]).abs()
            assert not difference.isnan().any(), name
            assert difference.numel() == 0 or difference.max() <= tolerance, (name, difference.max().item())
        else:
            assert torch.equal(found[name], expected[name]), (name, found[name], expected[name])


def _flat_rows(positions: range, rows_per_slot: int, slot: int) -> Tensor:
    return torch.tensor([slot * rows_per_slot + p % rows_per_slot for p in positions], dtype=torch.int64)
