"""A session whose state is worth comparing: nothing in it is as it began."""

from __future__ import annotations

import torch

from nextn.graphs.eager_session import EagerRequest, EagerSession, eager_graphs
from nextn.graphs.model import Model
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.weights.config_json import parse_model_config
from tests.oracles.synthetic import CASES


def session_in_progress() -> EagerSession:
    """A session in the middle of two requests, on random weights."""
    config, _ = parse_model_config(CASES["tiny"].config, "config.json")
    shape = SessionShape(config, num_steps=2, batch_sizes=(2,), max_seq_len=64, prefill_chunk=8)
    model, state = Model(shape), State(shape)
    generator = torch.Generator().manual_seed(5)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
    session = EagerSession(shape, state, eager_graphs(model, state, shape), phases=True)
    for slot, prompt in enumerate(([3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [2, 7])):
        session.prefill(slot, EagerRequest(prompt, 30, temperature=0.7, seed=slot))
    session.round()
    return session
