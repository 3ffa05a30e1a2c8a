"""NextN's rows against the independent twin: many rows at once, one by one, and on its own streams."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nextn.graphs.window import Window
from tests.oracles.synthetic import CASES
from tests.rounds.product import Product

ROWS = 140
TOLERANCE = 5e-5
"""Measured at most 8.6e-6, with logits up to 20."""


class Rows:
    """Pairs (streams of i, token i + 1) of a random text, and a NextN ring to run them through."""

    def __init__(self, product: Product, count: int = ROWS) -> None:
        self.product, self.model = product, product.model()
        self.ids = list(product.oracle.prompt(count + 1, seed=11))
        self.streams = product.oracle.target.forward(self.ids).streams[:-1]  # [T, M, H]
        self.ids = self.ids[1:]
        self.rows_per_slot = product.shape().ring_rows
        self.ring = torch.full((2 * self.rows_per_slot, product.config.head_dim), torch.nan)

    def run(self, start: int, streams: Tensor, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Logits `[V, vocab]` and own streams `[V, M, H]` of V rows from position `start`."""
        count = len(ids)
        window = Window(torch.tensor([0]), torch.tensor([start]), torch.tensor([count]), count, 1)
        embedded = self.model.embed_tokens(torch.tensor(ids))
        own = self.model.nextn.draft(
            streams, embedded, torch.tensor(ids), window, self.model.rope_plain, self.ring
        )
        return self.model.logits(self.model.nextn.hidden(own)), own


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [1, 4, 9, ROWS])
def test_extend_rows(product_of, name, width):
    """Windows of any width over a text longer than the ring, from a ring full of NaN.

    NextN takes the Target's streams before the stream head: https://github.com/AI-Hypercomputer/maxtext/pull/4736.
    Its settings are its own, not a Target layer's: https://github.com/antirez/ds4/issues/411.
    """
    rows = Rows(product_of(name), ROWS if name in ("tiny", "release_window", "pro_like") else 40)
    count = len(rows.ids)
    expected, expected_own = rows.product.oracle.nextn.nextn_forward(
        rows.streams, rows.ids, list(range(count))
    )
    for start in range(0, count, width):
        part = slice(start, start + width)
        logits, own = rows.run(start, rows.streams[part], rows.ids[part])
        torch.testing.assert_close(logits, expected[part], rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(own, expected_own[part], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["tiny", "three_streams", "pro_like"])
def test_step_rows_and_the_extend_that_overwrites_them(product_of, name):
    """Steps run on NextN's own streams at the next positions; a later extend replaces their rows."""
    rows = Rows(product_of(name), 30)
    twin, positions = rows.product.oracle.nextn, list(range(30))
    expected, _ = twin.nextn_forward(rows.streams, rows.ids, positions)
    for start in (3, 7, 20):
        _, own = rows.run(0, rows.streams[:start], rows.ids[:start])
        streams, ids = rows.streams[:start], rows.ids[:start]
        for step in range(4):
            guess = (17 * step + 5) % rows.product.config.vocab_size
            streams, ids = torch.cat([streams, own[-1:]]), [*ids, guess]
            wanted, wanted_own = twin.nextn_forward(streams, ids, positions[: len(ids)])
            logits, own = rows.run(start + step, own[-1:], [guess])
            torch.testing.assert_close(logits[0], wanted[-1], rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(own[0], wanted_own[-1], rtol=0, atol=TOLERANCE)
        logits, _ = rows.run(start, rows.streams[start : start + 4], rows.ids[start : start + 4])
        torch.testing.assert_close(logits, expected[start : start + 4], rtol=0, atol=TOLERANCE)


def test_position_zero_is_a_row_like_any_other(product_of):
    """Its embedding is not zeroed, which some implementations do."""
    rows = Rows(product_of("tiny"), 4)
    expected, _ = rows.product.oracle.nextn.nextn_forward(rows.streams[:1], rows.ids[:1], [0])
    logits, _ = rows.run(0, rows.streams[:1], rows.ids[:1])
    torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)
    other, _ = rows.run(0, rows.streams[:1], [rows.ids[0] + 1])
    assert (other - logits).abs().max() > 0.1
