"""Host moves that the driver makes in one go, cut into single launches so that tests can act between them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nextn.graphs.eager_session import EagerRequest, EagerSession


def prefill_chunks(session: EagerSession, slot: int, request: EagerRequest) -> Iterator[int]:
    """Prefill `request` into `slot`; yields the prompt position reached after each chunk.

    The slot is live, and its first token collected, at the last yield; the seed runs when resumed after it.
    """
    session.write_control(slot, request)
    chunk = session.shape.prefill_chunk
    for start in range(0, len(request.prompt), chunk):
        piece = torch.tensor(request.prompt[start : start + chunk])
        session.input("prompt_slot")[0] = slot
        session.input("prompt_tokens").zero_()
        session.input("prompt_tokens")[: len(piece)] = piece
        session.input("prompt_count")[0] = len(piece)
        session.launch("prefill", 1)
        if start + chunk >= len(request.prompt):
            session.live[slot] = request
            session.collect(slot, in_round=False)
        yield start + len(piece)
    if session.speculation and slot in session.live:
        session.input("prompt_slot")[0] = slot
        session.launch("seed", 1)
