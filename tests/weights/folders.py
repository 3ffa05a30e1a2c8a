"""Checkpoint folders for tests: one file or shards, with whatever names and config a test wants."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.oracles.synthetic import CASES, random_weights


def tiny_config() -> dict[str, Any]:
    """A fresh `config.json` with one layer of each kind: ratios 0, 4, 128; the first is hash-routed."""
    return CASES["tiny"].config


def tiny_tensors() -> dict[str, Tensor]:
    """The tensors of `tiny_config` under original names, float32, with `mtp.0.*`."""
    return random_weights(tiny_config(), seed=7)


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """`config.json` and one `model.safetensors`."""
    _write_config(folder, config)
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_shards(
    folder: Path,
    config: dict[str, Any],
    shards: dict[str, dict[str, Tensor]],
    unlisted: tuple[str, ...] = (),
) -> Path:
    """`config.json`, one file per entry of `shards`, and an index that leaves out the names in `unlisted`."""
    _write_config(folder, config)
    weight_map = {}
    for shard, tensors in shards.items():
        save_file(tensors, folder / shard)
        weight_map |= {name: shard for name in tensors if name not in unlisted}
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def without_nextn(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}


def raw_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _write_config(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
