"""Speculative decoding without any cache: every round recomputes everything from token 0.

It states what a round means, with no state that could be rolled back wrongly. Positions are absolute. Let L
be the position of the newest known token (the bonus), which the target has not consumed yet:

* NextN rows exist for every pair (target streams of i, token i + 1) with i < L; row L - 1 proposes the token
  at L + 1. Each further proposal is one more row, at the next position, from NextN's own streams of the row
  before and the draft just made.
* The target runs over all known tokens and the k drafts; its row p draws the token at p + 1. Drafts are
  accepted up to the first that differs from the drawn token, and the drawn token after them is the new bonus.
* Rows made from NextN's own streams last one round; the next round has target streams for those positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.oracles.hugging_face import HuggingFaceTarget
from tests.oracles.nextn_twin import NextnTwin
from tests.oracles.token_sample import draw_with_margin


@dataclass(frozen=True)
class Request:
    """One generation request."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    eos: tuple[int, ...] = ()
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.prompt or self.max_new_tokens < 1:
            raise ValueError("a request needs a prompt and room for at least one token")


@dataclass(frozen=True)
class Round:
    """One round: `drawn[j]` is the target's token at `position + 1 + j`, to be compared with `drafts[j]`."""

    position: int  # of the bonus that the round started from
    drafts: tuple[int, ...]  # [k]
    drawn: tuple[int, ...]  # [k + 1]
    accepted: int  # leading drafts equal to the drawn tokens, whatever was cut afterwards
    emitted: tuple[int, ...]  # after cutting at the length limit and at EOS
    draft_margins: tuple[float, ...]  # [k]
    drawn_margins: tuple[float, ...]  # [k + 1]


@dataclass
class Generation:
    """A finished request; `margins[i]` is by how much `token_ids[i]` won its draw."""

    token_ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    finish_reason: str = ""

    @property
    def accept_lens(self) -> list[int]:
        """Tokens that each round produced before cutting, bonus included; the first token is in no round."""
        return [one.accepted + 1 for one in self.rounds]

    @property
    def smallest_margin(self) -> float:
        """Over every draw that can change tokens or acceptance. Compare with care where it is tiny.

        Draws after the first rejected draft of a round have no effect, so they do not count.
        """
        margins = list(self.margins)
        for one in self.rounds:
            margins += one.draft_margins[: one.accepted + 1] + one.drawn_margins[: one.accepted + 1]
        return min(margins)


def plain(target: HuggingFaceTarget, request: Request) -> Generation:
    """One token at a time, each from a full forward: what speculation has to reproduce."""
    result = Generation()
    while not result.finish_reason:
        known = [*request.prompt, *result.token_ids]
        token, margin = _draw(target.forward(known).logits[-1], request, position=len(known))
        _append(result, request, [token], [margin])
        if len(result.token_ids) > 1:
            result.rounds.append(Round(len(known) - 1, (), (token,), 0, (token,), (), (margin,)))
    return result


def speculative(target: HuggingFaceTarget, nextn: NextnTwin, request: Request, k: int) -> Generation:
    """Rounds of k drafts. One target forward each."""
    result = Generation()
    prompt_rows = target.forward(list(request.prompt))
    streams = prompt_rows.streams  # [P, M, H], grows to all positions below the bonus
    token, margin = _draw(prompt_rows.logits[-1], request, position=len(request.prompt))
    _append(result, request, [token], [margin])
    while not result.finish_reason:
        known = [*request.prompt, *result.token_ids]
        bonus_position = len(known) - 1
        drafts, draft_margins = propose(nextn, streams, known, request, k)
        rows = target.forward(known + drafts)
        draws = [
            _draw(rows.logits[position], request, position + 1)
            for position in range(bonus_position, bonus_position + k + 1)
        ]
        drawn, drawn_margins = [token for token, _ in draws], [margin for _, margin in draws]
        accepted = _matching(drafts, drawn)
        emitted = _append(result, request, drawn[: accepted + 1], drawn_margins[: accepted + 1])
        result.rounds.append(
            Round(
                bonus_position,
                tuple(drafts),
                tuple(drawn),
                accepted,
                tuple(emitted),
                tuple(draft_margins),
                tuple(drawn_margins),
            )
        )
        streams = rows.streams[: bonus_position + len(emitted)]
    return result


def propose(
    nextn: NextnTwin, streams: Tensor, known: Sequence[int], request: Request, k: int
) -> tuple[list[int], list[float]]:
    """k drafts and their margins, from target streams [L, M, H] and the L + 1 known tokens."""
    bonus_position = len(known) - 1
    # One layer that sees only its window, so no earlier row can matter to any draft.
    first = max(0, bonus_position - nextn.config.sliding_window)
    row_streams = streams[first:bonus_position]  # [rows, M, H]
    row_ids = list(known[first + 1 :])
    positions = list(range(first, bonus_position))
    drafts: list[int] = []
    margins: list[float] = []
    for _ in range(k):
        logits, own_streams = nextn.nextn_forward(row_streams, row_ids, positions)
        # The row at position i holds token i + 1 and predicts token i + 2.
        draft, margin = _draw(logits[-1], request, position=positions[-1] + 2)
        drafts.append(draft)
        margins.append(margin)
        row_streams = torch.cat([row_streams, own_streams[-1:]])  # [rows + 1, M, H]
        row_ids.append(draft)
        positions.append(positions[-1] + 1)
    return drafts, margins


def _draw(logits: Tensor, request: Request, position: int) -> tuple[int, float]:
    return draw_with_margin(logits, request.temperature, request.seed, position)


def _matching(drafts: list[int], drawn: list[int]) -> int:
    for index, draft in enumerate(drafts):
        if draft != drawn[index]:
            return index
    return len(drafts)


def _append(result: Generation, request: Request, tokens: list[int], margins: list[float]) -> list[int]:
    """Add tokens up to the first EOS or the length limit, whichever is earlier; returns those added."""
    emitted: list[int] = []
    for token, margin in zip(tokens, margins, strict=True):
        emitted.append(token)
        result.token_ids.append(token)
        result.margins.append(margin)
        if token in request.eos:
            result.finish_reason = "stop"
        elif len(result.token_ids) == request.max_new_tokens:
            result.finish_reason = "length"
        if result.finish_reason:
            break
    return emitted
