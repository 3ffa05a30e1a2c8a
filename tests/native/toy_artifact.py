"""Compiles two small graphs that obey the protocol, and writes the tokens they must give.

Run as a program, in its own process: `toy_artifact.py FOLDER`. Weights and state are large beside the graphs,
so that a hidden copy of either shows in the memory of the process that replays them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from nextn.runtime.contract.blocks import Control, Result
from nextn.runtime.contract.graph_spec import StateSpec
from tests import artifact_builder as builder

SLOTS, CHUNK, VOCAB, WIDTH, RING, SPAN = 1, 2, 16384, 512, 8192, 4
PROMPT, NEW_TOKENS = [7, 99, 12345, 3, 16383, 8], 24


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("control", torch.zeros(SLOTS + 1, Control.WIDTH, dtype=torch.int64))
        self.register_buffer("result", torch.zeros(SLOTS + 1, Result.WIDTH, dtype=torch.int64))
        self.register_buffer("ring", torch.zeros((SLOTS + 1) * RING, WIDTH))
        self.register_buffer("slots_b1", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("prompt_slot", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("prompt_tokens", torch.zeros(CHUNK, dtype=torch.int64))
        self.register_buffer("prompt_count", torch.zeros(1, dtype=torch.int64))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(11)
        self.register_buffer("embed", torch.randn(VOCAB, WIDTH, generator=generator) / 4)


class Graph(nn.Module):
    """Each token's row is the squashed sum of its embedding and the mean of the rows before it."""

    def __init__(self, model: Model, state: State) -> None:
        super().__init__()
        self.model = model
        self.state = state

    def advance(self, slot: Tensor, position: Tensor, token: Tensor, active: Tensor) -> Tensor:
        """Writes one ring row; returns the next token, both [1]."""
        back = position[:, None] - torch.arange(1, SPAN + 1)
        rows = self.state.ring[torch.where(back >= 0, slot[:, None] * RING + back % RING, SLOTS * RING)]
        mean = torch.where((back >= 0)[..., None], rows, 0.0).mean(1)
        row = torch.tanh(self.model.embed[token] + mean)
        place = torch.where(active, slot * RING + position % RING, SLOTS * RING + 1)
        self.state.ring.index_put_((place,), row)
        # The nearest embedding is mostly the token's own; the position keeps the sequence moving.
        return ((row @ self.model.embed.T).argmax(-1) + 37 * position + 11) % VOCAB

    def emit(self, slot: Tensor, token: Tensor, position: Tensor, emits: Tensor, accepted: int) -> None:
        control, result = self.state.control, self.state.result
        row = control[slot]
        remaining = row[:, Control.REMAINING.offset] - emits.long()
        row = row.clone()
        row[:, Control.POS.offset] = position
        row[:, Control.BONUS.offset] = token
        row[:, Control.REMAINING.offset] = remaining
        row[:, Control.FINISHED.offset] = (remaining <= 0).long()
        control.index_put_((slot,), row)
        out = torch.zeros(1, Result.WIDTH, dtype=torch.int64)
        out[:, Result.OUT.offset] = token
        out[:, Result.OUT_COUNT.offset] = emits.long()
        # A plain number here would become a literal tensor, which nobody could bind.
        out[:, Result.ACCEPTED.offset] = torch.full((1,), accepted)
        out[:, Result.FINISHED.offset] = (remaining <= 0).long()
        result.index_put_((slot,), out)


class Prefill(Graph):
    def forward(self) -> tuple[()]:
        slot, count = self.state.prompt_slot, self.state.prompt_count
        start = self.state.control[slot, Control.POS.offset]
        token = torch.zeros(1, dtype=torch.int64)
        for i in range(CHUNK):
            active = count > i
            drawn = self.advance(slot, start + i, self.state.prompt_tokens[i : i + 1], active)
            token = torch.where(active, drawn, token)
        position = start + count
        emits = position == self.state.control[slot, Control.PROMPT_LENGTH.offset]
        self.emit(slot, token, position, emits, accepted=-1)
        return ()


class Decode(Graph):
    def forward(self) -> tuple[()]:
        slot = self.state.slots_b1
        position = self.state.control[slot, Control.POS.offset]
        bonus = self.state.control[slot, Control.BONUS.offset]
        token = self.advance(slot, position, bonus, position >= 0)
        self.emit(slot, token, position + 1, position >= 0, accepted=0)
        return ()


def eager_tokens(model: Model) -> list[int]:
    """The driver's loop over the same modules, uncompiled."""
    state = State()
    row = state.control[0]
    row[Control.REMAINING.offset] = NEW_TOKENS
    row[Control.PROMPT_LENGTH.offset] = len(PROMPT)
    row[Control.EOS.columns] = -1
    for begin in range(0, len(PROMPT), CHUNK):
        part = PROMPT[begin : begin + CHUNK]
        state.prompt_tokens[: len(part)] = torch.tensor(part)
        state.prompt_count[0] = len(part)
        Prefill(model, state)()
    tokens = [int(state.result[0, 0])]
    while not state.result[0, Result.FINISHED.offset]:
        Decode(model, state)()
        tokens.append(int(state.result[0, 0]))
    return tokens


def compile_graph(module: Graph) -> bytes:
    program = torch.export.export(module, ())
    options = {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        # Otherwise inductor bakes in what a graph only reads: any vector of up to eight elements, and what is
        # computed from buffers that happen to be uniform when it compiles, as zero-filled inputs are.
        "always_keep_tensor_constants": True,
        "joint_graph_constant_folding": False,
    }
    files = torch._inductor.aot_compile(program.module(check_guards=False), (), options=options)
    return Path(next(file for file in files if str(file).endswith(".so"))).read_bytes()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    model, state = Model(), State()
    modules = {"prefill": Prefill(model, state), "decode": Decode(model, state)}
    weights = builder.write_weight(folder / "weights.safetensors", "embed", model.embed.numpy())
    with torch.no_grad():
        builder.write_artifact(
            folder,
            builder.small_shape(VOCAB, (), 0, (1,), max_seq_len=64, prefill_chunk=CHUNK),
            weights,
            (*builder.BLOCKS, StateSpec("ring", RING, WIDTH, "float32")),
            content=lambda graph: compile_graph(modules[graph.name]),
        )
        tokens = eager_tokens(model)
    (folder / "expected.json").write_text(json.dumps(tokens))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
