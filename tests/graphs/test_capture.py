"""What of in-process capture a CPU can show; captures themselves are in tests/npu."""

from __future__ import annotations

import pytest
import torch

from nextn.graphs.capture import DeviceSession, captured_graphs
from nextn.graphs.config import parse_model_config
from nextn.graphs.driver import Request, Session, eager_graphs
from nextn.graphs.model import Model
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.runtime.contract.errors import UsageError
from tests.oracles.synthetic import CASES


@pytest.fixture(scope="module")
def shape() -> SessionShape:
    config, _ = parse_model_config(CASES["tiny"].config, "config.json")
    return SessionShape(config, num_steps=2, batch_sizes=(1, 2), max_seq_len=64, prefill_chunk=8)


def test_a_device_without_graphs(shape: SessionShape) -> None:
    with pytest.raises(UsageError, match="no graph capture on this device"):
        captured_graphs(Model(shape), State(shape), shape, "cpu")


def test_a_device_session_gives_the_tokens_of_a_session(shape: SessionShape) -> None:
    """Results read once a round, slots written when they change: requests come and go over both buckets."""
    model = Model(shape)
    generator = torch.Generator().manual_seed(3)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
    outcomes = []
    for kind in (Session, DeviceSession):
        state = State(shape)
        asked = [Request([1 + i, 2, 3], 4 + 5 * i, seed=i, temperature=0.9) for i in range(4)]
        done = kind(shape, state, eager_graphs(model, state, shape)).generate(asked)
        outcomes.append([(one.tokens, one.accept_lens) for one in done])
    assert outcomes[0] == outcomes[1]
    assert [len(tokens) for tokens, _ in outcomes[0]] == [4, 9, 14, 19]
