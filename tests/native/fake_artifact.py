"""Artifacts whose graphs are copies of fake_graph.cpp, and a Python model of the tokens they must produce."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS, TEMPERATURE_ONE, Control, Result, field_offsets

SLOTS, CHUNK, VOCAB, SCALE = 4, 8, 61, 7
BATCH_SIZES = [1, 2, 4]
MAX_SEQ_LEN = 64
EOS = 5

Json = Any


def write_artifact(folder: Path, graph_library: Path, num_steps: int = 3) -> Path:
    """A sound artifact at `folder`."""
    (folder / "graphs").mkdir(parents=True)
    embed = struct.pack("<3f", SCALE, VOCAB, num_steps)
    weights = write_safetensors(folder / "weights.safetensors", {"embed": ("F32", [3], embed)})
    graphs = []
    for name, batch in graph_keys(num_steps):
        file = f"graphs/{name}.b{batch}.so"
        shutil.copyfile(graph_library, folder / file)
        data = (folder / file).read_bytes()
        graphs.append(
            {
                "name": name,
                "batch": batch,
                "rows": 1,
                "file": file,
                "sha256": hashlib.sha256(data).hexdigest(),
                "bytes": len(data),
                "tensors": graph_tensors(name, batch),
            }
        )
    write_manifest(folder, manifest(num_steps, graphs, weights))
    return folder


def graph_keys(num_steps: int) -> list[tuple[str, int]]:
    per_batch = ["decode"]
    if num_steps:
        per_batch += ["verify", "accept", "draft_extend", "round"]
    if num_steps > 1:
        per_batch.append("draft_step")
    single = ["prefill", "seed"] if num_steps else ["prefill"]
    return [(name, 1) for name in single] + [(name, batch) for name in per_batch for batch in BATCH_SIZES]


def state_table() -> list[Json]:
    widths = {"control": Control.WIDTH, "result": Result.WIDTH, "history": 1, "window": MAX_WINDOW_ROWS}
    return [
        {"name": name, "rows_per_slot": 1, "row_width": width, "dtype": "int64"}
        for name, width in widths.items()
    ]


def input_table() -> list[Json]:
    sizes = {f"slots_b{batch}": batch for batch in BATCH_SIZES}
    sizes |= {"prompt_slot": 1, "prompt_tokens": CHUNK, "prompt_count": 1}
    return [{"name": name, "dtype": "int64", "shape": [size]} for name, size in sizes.items()]


def graph_tensors(name: str, batch: int) -> list[Json]:
    tensors: list[Json] = [{"name": "embed", "kind": "weight", "dtype": "float32", "shape": [3]}]
    prompt = name in ("prefill", "seed")
    for entry in state_table()[: 3 if prompt else 4]:
        shape = [(SLOTS + 1) * entry["rows_per_slot"], entry["row_width"]]
        tensors.append({"name": entry["name"], "kind": "state", "dtype": entry["dtype"], "shape": shape})
    wanted = "prompt" if prompt else f"slots_b{batch}"
    tensors += [dict(entry, kind="input") for entry in input_table() if entry["name"].startswith(wanted)]
    return tensors


def manifest(num_steps: int, graphs: list[Json], weights: Json) -> Json:
    return {
        "format_version": "2.0",
        "manifest_sha256": "0" * 64,
        "producer": {"nextn": "0.1.0", "torch": "2.13.0+cpu", "compiler": "g++", "command": []},
        "target": {
            "device": "cpu",
            "emit": "aoti",
            "dtype": "float32",
            "isa": [],
            "soc": None,
            "world_size": 1,
            "rank": 0,
        },
        "model": {
            "config": {"rope": 1e4, "nested": [None, True]},
            "sha256": "0" * 63 + "1",
            "vocab_size": VOCAB,
            "bos_token_id": None,
            "eos_token_ids": [EOS],
        },
        "speculation": {"num_steps": num_steps, "num_draft_tokens": num_steps + 1},
        "limits": {
            "max_seq_len": MAX_SEQ_LEN,
            "prefill_chunk": CHUNK,
            "batch_sizes": BATCH_SIZES,
            "slots": SLOTS,
            "max_window_rows": MAX_WINDOW_ROWS,
        },
        "state": state_table(),
        "inputs": input_table(),
        "blocks": {
            "control": {"width": Control.WIDTH, "fields": field_offsets(Control)},
            "result": {"width": Result.WIDTH, "fields": field_offsets(Result)},
        },
        "requires": ["libtorch"],
        "ops": {"linear": "plain"},
        "graphs": graphs,
        "weights": weights,
        "golden": {"file": "golden.safetensors", "bytes": 0, "sha256": "0" * 64},
        "tokenizer": [],
    }


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Json:
    """Writes the file and returns its manifest entry."""
    header: dict[str, Json] = {}
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        body += data
    return write_raw_safetensors(path, json.dumps(header), body, list(tensors))


def write_raw_safetensors(path: Path, header: str, body: bytes, names: list[str]) -> Json:
    text = header.encode()
    text += b" " * (-(len(text) + 8) % 64)
    head = struct.pack("<Q", len(text)) + text
    path.write_bytes(head + body)
    return {
        "file": path.name,
        "bytes": len(head) + len(body),
        "header_bytes": len(head),
        "header_sha256": hashlib.sha256(head).hexdigest(),
        "body_sha256": hashlib.sha256(body).hexdigest(),
        "tensors": [{"name": name} for name in names],
    }


def read_manifest(folder: Path) -> Json:
    return json.loads((folder / "manifest.json").read_text())


def write_manifest(folder: Path, content: Json) -> None:
    """Writes the manifest with its own hash, as a compiler that meant every word of it would."""
    content["manifest_sha256"] = "0" * 64
    text = json.dumps(content)
    digest = hashlib.sha256(text.encode()).hexdigest()
    text = text.replace('"manifest_sha256": "' + "0" * 64, '"manifest_sha256": "' + digest)
    (folder / "manifest.json").write_text(text)


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
