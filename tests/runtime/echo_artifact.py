"""Artifacts for the echo executor, with a byte-level tokenizer; their weights are four numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from nextn.runtime.contract.graph_spec import StateSpec
from nextn.runtime.contract.manifest import Manifest
from tests.artifact_builder import (
    BLOCKS,
    file_record,
    small_shape,
    write_artifact,
    write_manifest,
    write_weight,
)

EOS = 256
BOS = 257
VOCAB_SIZE = 300

RING = StateSpec("ring", rows_per_slot=4, row_width=8, dtype="float32")


def byte_level_tokenizer() -> Tokenizer:
    """Token id = byte; 256 and 257 are special."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>", "<bos>"])
    return tokenizer


def write_echo_artifact(
    folder: Path,
    *,
    num_steps: int = 3,
    batch_sizes: tuple[int, ...] = (1, 2),
    tokenizer: bool | str = True,
    **settings: object,
) -> Path:
    """`settings` are those of `EchoExecutor`, which finds them in the manifest.

    `tokenizer` is whether there is one, or the text of its file.
    """
    weights = write_weight(folder / "weights.safetensors", "embed", np.arange(4))
    if tokenizer:
        byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    if isinstance(tokenizer, str):
        (folder / "tokenizer.json").write_text(tokenizer)
    return write_artifact(
        folder,
        small_shape(VOCAB_SIZE, (EOS,), num_steps, batch_sizes, max_seq_len=512, prefill_chunk=8),
        weights,
        (*BLOCKS, RING),
        tokenizer=["tokenizer.json"] if tokenizer else [],
        command=tuple(f"{name}={value}" for name, value in settings.items()),
    )


def damage_weights(folder: Path) -> None:
    """Changes the last byte of the body."""
    path = folder / "weights.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def replace_golden(folder: Path, manifest: Manifest, content: bytes) -> None:
    """Writes another golden file and records it."""
    (folder / "golden.safetensors").write_bytes(content)
    write_manifest(folder, dataclasses.replace(manifest, golden=file_record(folder, "golden.safetensors")))
