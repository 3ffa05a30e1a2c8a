"""Compiled graphs and their state: poison reaches nothing, weights stay one read-only file mapping."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session
from tests.integration.conftest import Ask, asks

POISON = {"nan": math.nan, "huge": 1e30, "negative": -1e30}


def poison_floats(model: Model, session: Session, value: float) -> int:
    """Fill every float32 state buffer; returns how many values were overwritten."""
    count = 0
    for spec in model.manifest.state:
        if spec.dtype == "float32":
            view = session.state(spec.name)
            view[:] = struct.pack("f", value) * (len(view) // 4)
            count += len(view) // 4
    return count


def tokens(session: Session, requests: list[Ask]) -> list[tuple[int, ...]]:
    ids = [session.submit(ask.prompt, max_new_tokens=ask.max_new_tokens, ignore_eos=True) for ask in requests]
    session.run()
    return [session.result(one).tokens for one in ids]


@pytest.mark.parametrize("name", POISON)
def test_poison_in_unwritten_left_over_and_padding_rows(model: Model, name: str) -> None:
    """Three requests in a bucket of four, before and after other requests used the slots."""
    requests = asks(model.info.vocab_size, 3, longest=150, new_tokens=30, temperature=0.0)
    with model.session() as clean:
        expected = tokens(clean, requests)
    with model.session() as session:
        assert poison_floats(model, session, POISON[name]) > 10_000
        assert tokens(session, requests) == expected
        assert tokens(session, requests[::-1]) == expected[::-1]
        poison_floats(model, session, POISON[name])
        assert tokens(session, requests) == expected
        left = session.state("window_0")
        assert struct.pack("f", POISON[name]) in bytes(left), "the poison is still there"


def test_weights_are_mapped_read_only_once(model: Model, speculative: Path) -> None:
    with model.session(), model.session(phases=True):
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "weights.safe" in line]
    mappings = [line for line in lines if str(speculative.resolve()) in line]
    assert len(mappings) == 1
    assert mappings[0].split()[1].startswith("r--")
