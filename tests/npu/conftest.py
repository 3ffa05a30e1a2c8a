"""Tests that need torch_npu, on the fake CANN; in an environment without it nothing here is collected."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from nextn.graphs.model import derived_constants
from nextn.graphs.session_shape import SessionShape
from nextn.weights import Checkpoint, load_weights, packed_weights
from tests.npu.sessions import Converted
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

if importlib.util.find_spec("torch_npu") is None:
    collect_ignore_glob = ["*"]
else:
    from tests.fakes.cann.fixtures import cann  # noqa: F401


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """Every graph of `tiny` at k = 2 in float32, batch 2."""
    config = CASES["tiny"].config
    folder = write_checkpoint(tmp_path_factory.mktemp("tiny"), config, random_weights(config, seed=7))
    checkpoint = Checkpoint.open(folder)
    shape = SessionShape(checkpoint.config, num_steps=2, batch_sizes=(2,), max_seq_len=192, prefill_chunk=16)
    weights = load_weights(checkpoint, packed_weights(checkpoint.config, True), torch.float32)
    return Converted.convert(shape, weights | derived_constants(checkpoint.config))
