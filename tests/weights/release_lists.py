"""The full tensor lists of the two releases, and files that have their headers but no data."""

import json
import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from tests.graphs.releases import flash_config, pro_config

FOLDER = Path(__file__).with_name("release_tensors")

CONFIGS = {"flash": flash_config, "pro": pro_config}

TOTALS = {"flash": 69187, "pro": 145116}

_BYTES = {
    "F32": 4,
    "F64": 8,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I8": 1,
    "U8": 1,
    "I32": 4,
    "I64": 8,
}


@dataclass(frozen=True)
class ListedTensor:
    """One tensor of a release."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * _BYTES[self.dtype]


def release_tensors(model: str, experts: int) -> list[ListedTensor]:
    """The tensors of `flash` or `pro`, with the entry of expert 0 repeated for `experts` of them."""
    tensors: list[ListedTensor] = []
    prefixes: list[str] = []
    for line in (FOLDER / f"{model}.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            prefixes = line.strip("[]").split(" ")
            continue
        name, dtype, sizes = line.split(" ")
        shape = tuple(map(int, sizes.split("x")))
        for prefix in prefixes:
            tensors += [
                ListedTensor(prefix + expanded, dtype, shape) for expanded in _for_experts(name, experts)
            ]
    return tensors


def write_headers(folder: Path, config: dict, tensors: list[ListedTensor], shards: int) -> Path:
    """A folder whose shards are all header: the data is a hole of the right size."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weight_map = {}
    size = -(-len(tensors) // shards)
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header, end = {}, 0
        for tensor in tensors[shard * size : (shard + 1) * size]:
            offsets = [end, end + tensor.nbytes]
            header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
            weight_map[tensor.name] = file
            end += tensor.nbytes
        text = json.dumps(header).encode()
        with open(folder / file, "wb") as output:
            output.write(struct.pack("<Q", len(text)) + text)
            output.truncate(8 + len(text) + end)
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def _for_experts(name: str, experts: int) -> list[str]:
    if not re.match(r"ffn\.experts\.0\.", name):
        return [name]
    return [name.replace("experts.0.", f"experts.{expert}.") for expert in range(experts)]
