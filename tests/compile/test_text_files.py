"""A checkpoint's files about text are checked before anything is packed: an artifact carries them along."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from tests.compile.conftest import Outcome
from tests.oracles.synthetic import CASES
from tests.runtime.echo_artifact import byte_level_tokenizer

Run = Callable[..., Outcome]

POINTER = """\
version https://git-lfs.github.com/spec/v1
oid sha256:4d7a815c7a0e0f60e0b6d1cf0b0ad3a2ee8de0eb0a0bfd5b2a1d1b3f1e2b6a90
size 7847602
"""

VOCABULARY = CASES["window_only"].config["vocab_size"]


@pytest.fixture
def source(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint to which a test adds files."""
    return Path(shutil.copytree(checkpoint, tmp_path / "source"))


FAULTS = {
    "tokenizer.json": [
        (POINTER, "found a Git LFS pointer: run `git lfs pull`"),
        ("", "not a tokenizer"),
        (byte_level_tokenizer().to_str()[:1000], "not a tokenizer"),
        ('{"model": {"type": "none of them"}}', "not a tokenizer"),
    ],
    "tokenizer_config.json": [
        (POINTER, "found a Git LFS pointer: run `git lfs pull`"),
        ('{"add_bos_token": fa', "not a JSON object"),
        ("[]", "not a JSON object"),
    ],
}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [(name, text, expected) for name, faults in FAULTS.items() for text, expected in faults],
)
def test_an_unreadable_file_is_refused(
    source: Path, tmp_path: Path, compile_to: Run, name: str, text: str, expected: str
) -> None:
    """https://github.com/mlc-ai/mlc-llm/issues/1954: the fault is of the download, not of the artifact."""
    (source / name).write_text(text)
    refused = compile_to(tmp_path / "artifact", source=source)
    assert refused.code == 3
    [line] = [line for line in refused.err.splitlines() if "error" in line]
    assert str(source / name) in line and expected in line
    assert "packed" not in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("beyond", [0, 1])
def test_tokens_beyond_the_vocabulary_are_told(
    source: Path, tmp_path: Path, compile_to: Run, beyond: int
) -> None:
    """Not refused: tokens that a fine-tune added are no fault of the others, and prompts with them are."""
    words = {f"word{token}": token for token in range(VOCABULARY - 1)}
    tokenizer = Tokenizer(models.WordLevel(words, "word0"))
    tokenizer.add_tokens([f"<added {number}>" for number in range(1 + beyond)])
    tokenizer.save(str(source / "tokenizer.json"))
    planned = compile_to(tmp_path / "artifact", "--dry-run", source=source)
    assert planned.code == 0
    warnings = [line for line in planned.err.splitlines() if "tokenizer.json" in line]
    assert len(warnings) == beyond
    for line in warnings:
        assert f"{VOCABULARY} tokens" in line and f"id {VOCABULARY}" in line
