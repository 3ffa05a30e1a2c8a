"""Whether a checkpoint's files about text can be read: an artifact carries them along."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint_files import TOKENIZER_FILES

_POINTER = b"version https://git-lfs.github.com/spec/"
"""What a file begins with that Git LFS has not fetched; see the specification of Git LFS."""


def check_text_files(folder: Path, vocab_size: int) -> str | None:
    """Reads them; a warning if the tokenizer has tokens that the model lacks.

    That is not refused: every other token is right, and a prompt with one of these is refused when it comes.
    DeepSeek-V4's own tokenizer ends at id 129279, the last of its 129280 embeddings.

    Raises CheckpointError if a file is a Git LFS pointer or not what its name says.
    """
    warning = None
    for name in TOKENIZER_FILES:
        file = folder / name
        if not file.is_file():
            continue
        _refuse_pointer(file)
        if name == "tokenizer.json":
            warning = _tokens_beyond(file, vocab_size)
        else:
            _require_object(file)
    return warning


def _refuse_pointer(file: Path) -> None:
    with open(file, "rb") as opened:
        if opened.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(
                "the file is not downloaded",
                file=file,
                expected="its content",
                found="a Git LFS pointer: run `git lfs pull` in the checkpoint",
            )


def _tokens_beyond(file: Path, vocab_size: int) -> str | None:
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for every fault
        raise CheckpointError(
            "not a tokenizer", file=file, expected="a whole file of Hugging Face's tokenizers", found=error
        ) from error
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest < vocab_size:
        return None
    return (
        f"{file}: its largest token has id {largest}, and the model has {vocab_size} tokens: prompts with a "
        "token beyond them will be refused"
    )


def _require_object(file: Path) -> None:
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError("not a JSON object", file=file, found=error) from error
    if not isinstance(content, dict):
        raise CheckpointError("not a JSON object", file=file, found=type(content).__name__)
