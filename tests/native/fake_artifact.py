"""Artifacts whose graphs are copies of fake_graph.cpp, and a Python model of the tokens they must produce."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS, TEMPERATURE_ONE
from nextn.runtime.contract.graph_spec import StateSpec
from tests import artifact_builder as builder

SLOTS, CHUNK, VOCAB, SCALE = 4, 8, 61, 7
BATCH_SIZES = (1, 2, 4)
MAX_SEQ_LEN = 64
EOS = 5

STATE = (
    *builder.BLOCKS,
    StateSpec("history", 1, 1, "int64"),
    StateSpec("window", 1, MAX_WINDOW_ROWS, "int64"),
)


def write_artifact(folder: Path, graph_library: Path, num_steps: int = 3) -> Path:
    """A sound artifact at `folder`."""
    weights = builder.write_weight(
        folder / "weights.safetensors", "embed", np.array([SCALE, VOCAB, num_steps])
    )
    shape = builder.small_shape(VOCAB, (EOS,), num_steps, BATCH_SIZES, MAX_SEQ_LEN, CHUNK)
    library = graph_library.read_bytes()
    return builder.write_artifact(folder, shape, weights, STATE, content=lambda graph: library)


def expected_tokens(
    prompt: list[int], max_new_tokens: int, seed: int = 0, temperature: float = 0, ignore_eos: bool = False
) -> list[int]:
    """What fake_graph.cpp computes for one request, whatever the batch, the slot and the number of steps."""
    history = 0
    tokens: list[int] = []
    noise = seed + round(temperature * TEMPERATURE_ONE)
    for position in range(len(prompt) + max_new_tokens):
        if position >= len(prompt):
            tokens.append((history * SCALE + position + noise) % VOCAB)
            if tokens[-1] == EOS and not ignore_eos:
                break
        token = prompt[position] if position < len(prompt) else tokens[-1]
        history = (history * 31 + token + 1) % 1000003
    return tokens


def expected_accept_lens(prompt: list[int], tokens: list[int], num_steps: int) -> list[int]:
    """Drafts of fake_graph.cpp are wrong at every third position; each round ends at the first wrong one."""
    lens = []
    position = len(prompt)
    while position < len(prompt) + len(tokens) - 1:
        matched = 0
        while matched < num_steps and (position + 1 + matched) % 3 != 0:
            matched += 1
        lens.append(matched + 1)
        position += matched + 1
    return lens
