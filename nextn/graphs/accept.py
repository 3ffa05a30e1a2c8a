"""Acceptance and emission on the device, by tensors of fixed shape alone.

Source: docs/design.md, "Rounds and accept".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.graphs.control import read_field, with_fields
from nextn.runtime.contract.blocks import Control, Result


@dataclass(frozen=True)
class Emission:
    """The tokens that requests emit, all int64 `[B]`; `last` is the new bonus token."""

    count: Tensor
    last: Tensor
    remaining: Tensor
    finished: Tensor


def matched_drafts(draft: Tensor, drawn: Tensor) -> Tensor:
    """Length int64 `[B]` of the longest common prefix of `draft [B, k]` and `drawn [B, k]`."""
    mismatches = torch.cumsum((draft != drawn).to(torch.int64), dim=1)
    return (mismatches == 0).to(torch.int64).sum(1)


def emit(control: Tensor, drawn: Tensor, produced: Tensor) -> Emission:
    """Trim `produced [B]` of the tokens `drawn [B, V]` by `remaining`, by the first EOS, and by `finished`.

    control: rows int64 `[B, F]`.
    """
    remaining = read_field(control, Control.REMAINING)[:, 0]
    finished = read_field(control, Control.FINISHED)[:, 0]
    eos = read_field(control, Control.EOS)  # [B, MAX_EOS]
    is_eos = (drawn[:, :, None] == eos[:, None, :]).to(torch.int64).sum(2)  # [B, V]
    is_eos = (is_eos > 0).to(torch.int64)
    before_or_at_eos = ((torch.cumsum(is_eos, dim=1) - is_eos) == 0).to(torch.int64).sum(1)
    count = torch.minimum(torch.minimum(produced, remaining), before_or_at_eos) * (1 - finished)
    offsets = torch.arange(drawn.shape[1])
    hit_eos = (is_eos * (offsets < count[:, None])).sum(1)
    remaining = remaining - count
    done = (finished > 0) | (hit_eos > 0) | (remaining <= 0)
    bonus = read_field(control, Control.BONUS)[:, 0]
    last = (drawn * (offsets == (count - 1)[:, None])).sum(1)
    return Emission(count, torch.where(count > 0, last, bonus), remaining, done.to(torch.int64))


def accept_round(control: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """New control rows `[B, F]` and result rows `[B, Result.WIDTH]` of one round.

    control holds the k drafts of the round, drawn `[B, k + 1]` the tokens that verification drew.
    """
    draft = read_field(control, Control.DRAFT)[:, : drawn.shape[1] - 1]  # [B, k]
    accepted = matched_drafts(draft, drawn[:, :-1])
    emission = emit(control, drawn, accepted + 1)
    was_finished = read_field(control, Control.FINISHED)[:, 0] > 0
    position = read_field(control, Control.POS)[:, 0] + emission.count
    return (
        advanced_control(control, emission, position),
        result_rows(drawn, emission, torch.where(was_finished, -1, accepted), position),
    )


def advanced_control(control: Tensor, emission: Emission, position: Tensor) -> Tensor:
    """Control rows after an emission; `position [B]` is the new `pos`."""
    return with_fields(
        control,
        {
            Control.POS: position[:, None],
            Control.BONUS: emission.last[:, None],
            Control.REMAINING: emission.remaining[:, None],
            Control.FINISHED: emission.finished[:, None],
        },
    )


def result_rows(drawn: Tensor, emission: Emission, accepted: Tensor, position: Tensor) -> Tensor:
    """Result rows int64 `[B, Result.WIDTH]`; columns that belong to no field are 0."""
    empty = torch.zeros(drawn.shape[0], Result.WIDTH, dtype=torch.int64)
    return with_fields(
        empty,
        {
            Result.OUT: drawn,
            Result.OUT_COUNT: emission.count[:, None],
            Result.ACCEPTED: accepted[:, None],
            Result.FINISHED: emission.finished[:, None],
            Result.POS: position[:, None],
        },
    )
