"""Attention of a window against a loop over positions in double precision."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nextn.graphs.ops.window_attention import window_attention

WINDOW, RATIO, CAPACITY = 4, 2, 6
ROWS, HEADS, WIDTH = 3, 4, 8


def inputs() -> dict[str, Any]:
    """Two requests of three slots, the first near its beginning; the last row of the second is padding."""
    generator = torch.Generator().manual_seed(0)
    return {
        "query": torch.randn(2, ROWS, HEADS, WIDTH, generator=generator),  # [B, V, N, D]
        "keys": torch.randn(2, WINDOW - 1 + ROWS, WIDTH, generator=generator),
        "start": torch.tensor([1, 6]),
        "count": torch.tensor([3, 2]),
        "sink": torch.randn(HEADS, generator=generator),
        "entries": torch.randn(3 * CAPACITY, WIDTH, generator=generator),
        "slots": torch.tensor([2, 0]),
        "chosen": None,
        "ratio": RATIO,
        "capacity": CAPACITY,
    }


def seen_rows(given: dict[str, Any], b: int, v: int) -> list[Tensor]:
    """Keys and entries that row v of request b attends to."""
    start, position = int(given["start"][b]), int(given["start"][b]) + v
    first = start - (WINDOW - 1)
    rows = [given["keys"][b, place - first] for place in range(max(position - (WINDOW - 1), 0), position + 1)]
    if given["entries"] is None:
        return rows
    known = min(position + 1, start + int(given["count"][b]))
    numbers = range(known // RATIO)
    if given["chosen"] is not None:
        numbers = [number for number in given["chosen"][b, v].tolist() if number < known // RATIO]
    return rows + [given["entries"][int(given["slots"][b]) * CAPACITY + number] for number in numbers]


def naive_attention(given: dict[str, Any], b: int, v: int, head: int) -> Tensor:
    """`[D]` float64: one joint softmax over the visible rows, the sink in its denominator only."""
    rows = torch.stack(seen_rows(given, b, v)).double()
    weights = torch.exp(rows @ given["query"][b, v, head].double() / math.sqrt(WIDTH))
    total = weights.sum() + given["sink"][head].double().exp()
    return (weights / total) @ rows


CHOSEN = torch.tensor([[[0, 5], [1, 0], [1, 4]], [[2, 0], [3, 1], [2, 3]]])
"""Some that are hidden yet, in no order."""


@pytest.mark.parametrize("kind", ["window alone", "all entries", "chosen entries"])
def test_every_row_equals_the_loop(kind: str) -> None:
    given = inputs()
    if kind == "window alone":
        given |= {"entries": None, "slots": None, "ratio": 0, "capacity": 0}
    elif kind == "chosen entries":
        given["chosen"] = CHOSEN
    found = window_attention(**given)
    for b in range(2):
        for v in range(ROWS):
            for head in range(HEADS):
                expected = naive_attention(given, b, v, head)
                torch.testing.assert_close(found[b, v, head].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chosen", [None, CHOSEN], ids=["all", "chosen"])
def test_what_is_hidden_has_no_weight(chosen: Tensor | None) -> None:
    """Keys before position 0 of any finite size; entries that are not complete, or of others, even NaN."""
    given = inputs() | {"chosen": chosen}
    expected = window_attention(**given)
    given["keys"][0, :2] = 1e15
    hidden = torch.ones(3 * CAPACITY, dtype=torch.bool)
    hidden[2 * CAPACITY : 2 * CAPACITY + 2] = hidden[:4] = False
    given["entries"][hidden] = math.nan
    assert torch.equal(window_attention(**given), expected)
    given["keys"][0, 2] = 1e15
    assert not torch.equal(window_attention(**given), expected)
