"""Held-out prompts for measuring acceptance: a bos marker and the bytes of a piece of a held-out file.

They are written as a requests file, which the product reads as it is; its tokenizer adds the bos.
"""

import json
import random
from pathlib import Path

import torch
from torch import Tensor

from .config import BOS
from .data import list_files, stdlib_root

COUNT, LENGTH = 50, 256  # ids per prompt, the bos included
SEED = 0


def sample_prompts(count: int = COUNT, seed: int = SEED) -> list[dict]:
    """Pieces that begin at a line start, drawn over the files in proportion to their size."""
    generator = random.Random(seed)
    root = stdlib_root()
    contents = [(path.relative_to(root), path.read_bytes()) for path in list_files()[1]]
    prompts: list[dict] = []
    while len(prompts) < count:
        name, content = generator.choices(contents, [len(c) for _, c in contents])[0]
        starts = [0] + [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
        start = generator.choice(starts)
        piece = content[start : start + LENGTH - 1]
        if len(piece) == LENGTH - 1 and piece.isascii():
            prompts.append({"id": f"{name.as_posix()}:{start}", "prompt": piece.decode()})
    return prompts


def write_prompts(path: Path) -> None:
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in sample_prompts()))


def encode(prompts: list[dict]) -> Tensor:
    """[count, LENGTH] ids."""
    return torch.tensor([[BOS, *prompt["prompt"].encode()] for prompt in prompts])
