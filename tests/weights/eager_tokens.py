"""What an opened checkpoint says: tokens through the eager session driver."""

from pathlib import Path

import torch

from nextn.graphs.eager_session import EagerRequest, EagerSession, eager_graphs
from nextn.graphs.model import Model, derived_constants
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.weights import Checkpoint, load_weights, packed_weights


def greedy_tokens(folder: Path, num_steps: int) -> list[list[int]]:
    """Two requests of 16 tokens each, past a block of every ratio but 128."""
    checkpoint = Checkpoint.open(folder)
    shape = SessionShape(checkpoint.config, num_steps=num_steps, max_seq_len=64, prefill_chunk=8)
    model, state = Model(shape), State(shape)
    weights = load_weights(checkpoint, packed_weights(checkpoint.config, num_steps > 0), torch.float32)
    model.load_weights(weights | derived_constants(checkpoint.config))
    requests = [EagerRequest([3, 1, 4, 1, 5, 9, 2, 6, 5], 16), EagerRequest([2, 7, 1], 16)]
    done = EagerSession(shape, state, eager_graphs(model, state, shape)).generate(requests)
    return [request.tokens for request in done]
