"""Training and held-out text: the Python standard library that ships with the running interpreter."""

import hashlib
import random
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .config import BOS, EOS

FILE_LIST = Path(__file__).with_name("data_files.tsv")
SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "encodings",
    "turtledemo",
    "ensurepip",
}
SMALLEST_FILE = 500  # bytes; shorter files are mostly empty package markers
HELD_OUT_EVERY, HELD_OUT_OFFSET = 23, 11


@dataclass
class Corpus:
    train: Tensor  # [bytes + markers] int64
    held_out: Tensor  # [bytes + markers] int64


def stdlib_root() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def list_files() -> tuple[list[Path], list[Path]]:
    """Sorted (training, held-out) files; pydoc's topics, the only prose of their kind, always train."""
    root = stdlib_root()
    files = []
    for path in sorted(root.rglob("*.py"), key=str):
        folders = path.relative_to(root).parts[:-1]
        if SKIPPED_FOLDERS.intersection(folders) or any(f.startswith("config-") for f in folders):
            continue
        if "sysconfigdata" not in path.name and path.stat().st_size > SMALLEST_FILE:
            files.append(path)
    held_out = [path for path in files[HELD_OUT_OFFSET::HELD_OUT_EVERY] if path.name != "topics.py"]
    return [path for path in files if path not in set(held_out)], held_out


def _join(files: list[Path]) -> Tensor:
    """Concatenate files, each between one bos and one eos."""
    pieces = [np.array([BOS, *path.read_bytes(), EOS], np.int64) for path in files]
    return torch.from_numpy(np.concatenate(pieces))


def load_corpus() -> Corpus:
    train, held_out = list_files()
    return Corpus(_join(train), _join(held_out))


def sample_windows(text: Tensor, count: int, length: int, seed: str) -> tuple[Tensor, Tensor]:
    """Random (inputs, next bytes), both [count, length]; every second window pretends to begin a file."""
    generator = random.Random(seed)
    starts = [generator.randrange(len(text) - length - 1) for _ in range(count)]
    inputs = torch.stack([text[i : i + length] for i in starts])
    targets = torch.stack([text[i + 1 : i + length + 1] for i in starts])
    for row in range(count):
        if generator.random() < 0.5:
            inputs[row, 0] = BOS
    return inputs, targets


def write_file_list() -> None:
    root = stdlib_root()
    lines = [f"# Python {sys.version.split()[0]}; paths are relative to the standard library folder"]
    for split, files in zip(("train", "held_out"), list_files(), strict=True):
        for path in files:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            lines.append(f"{split}\t{path.relative_to(root)}\t{len(content)}\t{digest}")
    FILE_LIST.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_file_list()
    corpus = load_corpus()
    print(f"train {len(corpus.train)} ids, held out {len(corpus.held_out)} ids")
