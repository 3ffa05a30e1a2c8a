"""What tests of whole sessions share: the ways to run, requests, and a look at state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State, state_table
from nextn.runtime.bindings.session import Session
from nextn.weights import Checkpoint
from tests.integration.conftest import Ask, asks
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

MODES: dict[str, dict[str, bool]] = {"round": {}, "phases": {"phases": True}, "plain": {"speculation": False}}


def tiny_checkpoint(folder: Path) -> Checkpoint:
    config = CASES["tiny"].config
    return Checkpoint.open(write_checkpoint(folder, config, random_weights(config, seed=7)))


def two_slot_shape(checkpoint: Checkpoint) -> SessionShape:
    """k = 2, two slots, prompts of several chunks."""
    return SessionShape(checkpoint.config, num_steps=2, batch_sizes=(1, 2), max_seq_len=128, prefill_chunk=16)


def some_asks(vocab: int) -> list[Ask]:
    """More than slots, of one to several chunks, greedy and sampled, some that EOS may end."""
    greedy = asks(vocab, 3, longest=45, new_tokens=14, temperature=0.0)
    sampled = asks(vocab, 2, longest=45, new_tokens=9, temperature=0.9, first=3)
    return [*greedy, *(replace(one, ignore_eos=False) for one in sampled)]


def submit(session: Session, requests: Sequence[Ask]) -> list[int]:
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
