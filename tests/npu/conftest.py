"""Tests that need torch_npu, on the fake CANN; in an environment without it nothing here is collected."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from nextn.graphs.session_shape import SessionShape
from nextn.weights import Checkpoint
from tests.npu.sessions import Converted, convert_plain
from tests.oracles.synthetic import QUICK, random_weights, write_checkpoint

if importlib.util.find_spec("torch_npu") is None:
    collect_ignore_glob = ["*"]
else:
    from tests.fakes.cann.fixtures import cann  # noqa: F401


@pytest.fixture(scope="session")
def quick_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = QUICK.config
    return write_checkpoint(tmp_path_factory.mktemp("quick"), config, random_weights(config, seed=7))


@pytest.fixture(scope="session")
def converted(quick_checkpoint: Path) -> Converted:
    """Every graph of it at k = 2 in float32, batch 2."""
    checkpoint = Checkpoint.open(quick_checkpoint)
    shape = SessionShape(checkpoint.config, num_steps=2, batch_sizes=(2,), max_seq_len=192, prefill_chunk=16)
    return convert_plain(checkpoint, shape)
