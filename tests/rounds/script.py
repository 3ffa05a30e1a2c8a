"""One text per case with the state that plain decoding has at each of its positions.

The text is what the model itself writes from a prompt of one token, sampled at a fixed seed. Noise depends on
the position alone, so any prefix of the text, taken as a prompt with that seed, is continued by the rest of
the text: every way of reaching a position can be compared with the same reference, which eager modules make.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.eager_session import EagerRequest
from nextn.graphs.state import State
from nextn.runtime.contract.blocks import Control
from tests.rounds.product import Product
from tests.rounds.readable_state import DRAFTING, Snapshot, assert_same_state, readable_state

LENGTH = 300
BOUNDARIES = (*range(1, 10), 12, 16, 17, 20, 25, *range(62, 67), *range(122, 134))
"""Around 4, windows of 8 and 16 and these plus 4 and 9, 4 * index_topk = 64, and 128."""

TOLERANCE = 7e-5
"""Between two ways of reaching a position; the largest measured difference of any case is 8e-6."""

SEED, TEMPERATURE = 7, 0.8


class Script:
    """`tokens[0]` is the prompt; `plain[p]` is the readable state after p rows of plain decoding."""

    def __init__(self, product: Product, length: int = LENGTH) -> None:
        self.product = product
        self.length = length
        self.max_seq_len = length + 20
        self.shape = product.shape(max_seq_len=self.max_seq_len)
        self.plain: dict[int, Snapshot] = {}
        self._drafting: dict[tuple[int, int], Snapshot] = {}
        session = product.session(self.shape, speculation=False, eager=True)
        request = EagerRequest(product.oracle.prompt(1, seed=3), length, seed=SEED, temperature=TEMPERATURE)
        session.prefill(0, request)
        while session.live:
            self._record(readable_state(session.state, self.shape, 0))
            session.round()
        self.tokens = [*request.prompt, *request.tokens]

    def request(self, position: int) -> EagerRequest:
        """The script's first `position` tokens as a prompt; its `remaining` then matches the plain run."""
        return EagerRequest(
            self.tokens[:position], self.length + 1 - position, seed=SEED, temperature=TEMPERATURE
        )

    def drafting(self, position: int, num_steps: int) -> Snapshot:
        """The readable state right after a one-chunk prefill of the text before `position`, and the seed."""
        key = (position, num_steps)
        if key not in self._drafting:
            shape = self.product.shape(num_steps, max_seq_len=self.max_seq_len, prefill_chunk=self.length)
            session = self.product.session(shape, eager=True)
            session.prefill(0, self.request(position))
            self._drafting[key] = readable_state(session.state, shape, 0)
        return self._drafting[key]

    def assert_plain(self, found: Snapshot, tolerance: float = TOLERANCE) -> None:
        """The Target's part of `found` is that of plain decoding at the same position."""
        expected = self.plain[int(found["control"][0])]
        assert_same_state(found, expected, tolerance, leave_out=DRAFTING)

    def assert_drafting(self, found: Snapshot, num_steps: int, tolerance: float = TOLERANCE) -> None:
        """Drafts and NextN's rows are those of a fresh prefill and seed at the same position."""
        expected = self.drafting(int(found["control"][0]), num_steps)
        assert_same_state(found, expected, tolerance)

    def drafts(self, position: int, accepted: int, num_steps: int) -> Tensor:
        """k drafts `[k]` for a round at `position` of which exactly `accepted` get accepted.

        The wrong token is followed by right ones, which must not be accepted behind it.
        """
        drafts = self.tokens[position + 1 : position + 1 + num_steps]
        if accepted < num_steps:
            drafts[accepted] = (drafts[accepted] + 1) % self.product.config.vocab_size
        return torch.tensor(drafts)

    def _record(self, snapshot: Snapshot) -> None:
        self.plain[int(snapshot["control"][0])] = snapshot


def force_drafts(state: State, slot: int, drafts: Tensor) -> None:
    """Replace the drafts that slot `slot` holds for its next round."""
    offset = Control.DRAFT.offset
    state.get_buffer("control")[slot, offset : offset + len(drafts)] = drafts
