"""What tests of whole sessions share: the ways to run, requests, and a look at state."""

from __future__ import annotations

from dataclasses import replace

import torch

from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State, state_table
from nextn.runtime.session import Session
from tests.integration.conftest import Ask, asks

MODES: dict[str, dict[str, bool]] = {"round": {}, "phases": {"phases": True}, "plain": {"speculation": False}}


def some_asks(vocab: int) -> list[Ask]:
    """More than slots, of one to several chunks, greedy and sampled, some that EOS may end."""
    greedy = asks(vocab, 3, longest=45, new_tokens=14, temperature=0.0)
    sampled = asks(vocab, 2, longest=45, new_tokens=9, temperature=0.9, first=3)
    return [*greedy, *(replace(one, ignore_eos=False) for one in sampled)]


def submit(session: Session, requests: list[Ask]) -> list[int]:
    return [
        session.submit(
            ask.prompt,
            max_new_tokens=ask.max_new_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
            ignore_eos=ask.ignore_eos,
        )
        for ask in requests
    ]


def state_of(session: Session, shape: SessionShape) -> dict[str, torch.Tensor]:
    """A copy of every state buffer."""
    fresh = State(shape)
    copies = {}
    for name in (one.name for one in state_table(shape)):
        buffer = fresh.get_buffer(name)
        content = bytearray(session.state(name))
        copies[name] = torch.frombuffer(content, dtype=buffer.dtype).view(buffer.shape)
    return copies
