"""Acceptance and emission against plain Python, over drafts, EOS, limits and finished rows mixed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.graphs.accept import accept_round, emit, matched_drafts
from nextn.runtime.contract.blocks import MAX_EOS, MAX_STEPS, MAX_WINDOW_ROWS, Control, Field, Result


@dataclass(frozen=True)
class Row:
    """One request before acceptance."""

    draft: tuple[int, ...]
    drawn: tuple[int, ...]
    remaining: int
    finished: int
    eos: tuple[int, ...]
    position: int
    bonus: int


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Rows of one window width; a vocabulary of four tokens makes matches and EOS frequent."""
    steps = draw(st.integers(0, MAX_STEPS))
    token = st.integers(0, 3)
    row = st.builds(
        Row,
        draft=st.tuples(*[token] * steps),
        drawn=st.tuples(*[token] * (steps + 1)),
        remaining=st.integers(1, steps + 3),
        finished=st.sampled_from([0, 0, 0, 1]),
        eos=st.lists(st.integers(2, 9), max_size=MAX_EOS).map(tuple),
        position=st.integers(1, 100),
        bonus=token,
    )
    return draw(st.lists(row, min_size=1, max_size=4))


def control_row(row: Row) -> torch.Tensor:
    values = torch.arange(1000, 1000 + Control.WIDTH)  # columns that nobody sets must survive

    def put(field: Field, *numbers: int) -> None:
        values[field.offset : field.offset + len(numbers)] = torch.tensor(numbers, dtype=torch.int64)

    put(Control.POS, row.position)
    put(Control.BONUS, row.bonus)
    put(Control.REMAINING, row.remaining)
    put(Control.FINISHED, row.finished)
    put(Control.EOS, *row.eos, *[-1] * (MAX_EOS - len(row.eos)))
    put(Control.DRAFT, *row.draft)
    return values


def emitted_tokens(row: Row, produced: int) -> list[int]:
    """One token after another, until something stops it."""
    out: list[int] = []
    while not row.finished and len(out) < min(produced, row.remaining):
        out.append(row.drawn[len(out)])
        if out[-1] in row.eos:
            break
    return out


def accepted_drafts(row: Row) -> int:
    count = 0
    while count < len(row.draft) and row.draft[count] == row.drawn[count]:
        count += 1
    return count


@given(batches())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_round_of_acceptance_equals_the_loop(rows):
    """Padded or finished rows emit nothing: https://github.com/NVIDIA/TensorRT-LLM/issues/5058."""
    before = torch.stack([control_row(row) for row in rows])
    control, result = accept_round(before, torch.tensor([row.drawn for row in rows]))
    for row, old, new, block in zip(rows, before, control, result, strict=True):
        accepted = accepted_drafts(row)
        out = emitted_tokens(row, accepted + 1)
        remaining = row.remaining - len(out)
        finished = int(bool(row.finished or remaining == 0 or (out and out[-1] in row.eos)))
        expected = old.clone()
        expected[Control.POS.columns] = row.position + len(out)
        expected[Control.BONUS.columns] = out[-1] if out else row.bonus
        expected[Control.REMAINING.columns] = remaining
        expected[Control.FINISHED.columns] = finished
        assert torch.equal(new, expected)
        assert block[Result.OUT.columns][: len(out)].tolist() == out
        assert block[Result.OUT_COUNT.columns].tolist() == [len(out)]
        assert block[Result.ACCEPTED.columns].tolist() == [-1 if row.finished else accepted]
        assert block[Result.FINISHED.columns].tolist() == [finished]
        assert block[Result.POS.columns].tolist() == [row.position + len(out)]


@given(batches(), st.integers(0, MAX_WINDOW_ROWS))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_emission_equals_the_loop_for_any_number_produced(rows, produced):
    """A chunk inside a prompt produces 0 tokens, the last one 1."""
    produced = min(produced, len(rows[0].drawn))
    control = torch.stack([control_row(row) for row in rows])
    emission = emit(control, torch.tensor([row.drawn for row in rows]), torch.full((len(rows),), produced))
    for index, row in enumerate(rows):
        out = emitted_tokens(row, produced)
        assert emission.count[index] == len(out)
        assert emission.last[index] == (out[-1] if out else row.bonus)
        assert emission.remaining[index] == row.remaining - len(out)


def test_a_right_draft_behind_a_wrong_one_is_not_accepted():
    draft = torch.tensor([[5, 6, 7], [5, 0, 7], [0, 6, 7], [5, 6, 0]])
    assert matched_drafts(draft, torch.tensor([[5, 6, 7]]).expand(4, -1)).tolist() == [3, 1, 0, 2]
