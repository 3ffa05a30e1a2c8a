"""Compiles two small graphs that obey the protocol, and writes the tokens they must give.

Run as a program, in its own process: `toy_artifact.py FOLDER`. Weights and state are large beside the graphs,
so that a hidden copy of either shows in the memory of the process that replays them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS, Control, Result
from tests.native import fake_artifact

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


def compile_graph(module: Graph, path: Path) -> None:
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
    shutil.copyfile(next(file for file in files if str(file).endswith(".so")), path)


def tensor_entries(module: Graph, unused: str = "none") -> list[dict[str, Any]]:
    """Manifest entries of the module's tensors but those whose name starts with `unused`."""
    entries = []
    for fqn, tensor in module.named_buffers():
        owner, name = fqn.split(".", 1)
        is_input = name.startswith(("slots_", "prompt_"))
        kind = "weight" if owner == "model" else "input" if is_input else "state"
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append({"name": name, "kind": kind, "dtype": dtype, "shape": list(tensor.shape)})
    return [entry for entry in entries if not entry["name"].startswith(unused)]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    model, state = Model(), State()
    (folder / "graphs").mkdir(parents=True)
    data = model.embed.numpy().tobytes()
    weights = fake_artifact.write_safetensors(
        folder / "weights.safetensors", {"embed": ("F32", [VOCAB, WIDTH], data)}
    )
    graphs = []
    with torch.no_grad():
        for name, module, unused in (
            ("prefill", Prefill(model, state), "slots_"),
            ("decode", Decode(model, state), "prompt_"),
        ):
            file = folder / f"graphs/{name}.b1.so"
            compile_graph(module, file)
            content = file.read_bytes()
            entry = {"name": name, "batch": 1, "rows": 1, "file": f"graphs/{file.name}"}
            entry |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            graphs.append(entry | {"tensors": tensor_entries(module, unused)})
        tokens = eager_tokens(model)
    manifest = fake_artifact.manifest(0, graphs, weights)
    manifest["producer"]["torch"] = torch.__version__
    manifest["model"] |= {"vocab_size": VOCAB, "eos_token_ids": []}
    manifest["limits"] = {
        "max_seq_len": 64,
        "prefill_chunk": CHUNK,
        "batch_sizes": [1],
        "slots": SLOTS,
        "max_window_rows": MAX_WINDOW_ROWS,
    }
    tensors = tensor_entries(Graph(model, state))
    manifest["state"] = [
        {
            "name": entry["name"],
            "rows_per_slot": entry["shape"][0] // (SLOTS + 1),
            "row_width": entry["shape"][1],
            "dtype": entry["dtype"],
        }
        for entry in tensors
        if entry["kind"] == "state"
    ]
    manifest["inputs"] = [entry for entry in tensors if entry["kind"] == "input"]
    fake_artifact.write_manifest(folder, manifest)
    (folder / "expected.json").write_text(json.dumps(tokens))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
