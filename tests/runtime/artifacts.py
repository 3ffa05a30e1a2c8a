"""Artifact folders for the fake library: a sealed manifest, a byte-level tokenizer, golden runs."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS
from nextn.runtime.contract.graph_spec import StateSpec
from nextn.runtime.contract.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    FileRecord,
    Limits,
    Manifest,
    ModelRecord,
    Producer,
    Speculation,
    Target,
    WeightsFile,
    block_layouts,
    to_json,
)

EOS = 256
BOS = 257
VOCAB_SIZE = 300
ZEROS = "0" * 64

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


def file_record(path: Path) -> FileRecord:
    content = path.read_bytes()
    return FileRecord(path.name, len(content), hashlib.sha256(content).hexdigest())


def write_artifact(
    folder: Path,
    *,
    num_steps: int = 3,
    batch_sizes: tuple[int, ...] = (1, 2),
    max_seq_len: int = 512,
    tokenizer: bool | str = True,
    knobs: dict[str, str] | None = None,
) -> Path:
    """An artifact that the fake opens; `knobs` steer the fake (see fake_nextn.c).

    `tokenizer` is whether there is one, or the text of its file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "golden.safetensors").write_bytes(b"none")
    files = []
    if tokenizer:
        byte_level_tokenizer().save(str(folder / "tokenizer.json"))
        if isinstance(tokenizer, str):
            (folder / "tokenizer.json").write_text(tokenizer)
        files.append(file_record(folder / "tokenizer.json"))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        manifest_sha256=ZEROS,
        producer=Producer("0.1.0", "2.13.0", "none", ZEROS, ("fake",)),
        target=Target("cpu", "aoti", "float32", ("avx2",), None, 1, 0),
        model=ModelRecord({}, ZEROS, VOCAB_SIZE, None, (EOS,)),
        speculation=Speculation(num_steps, num_steps + 1),
        limits=Limits(max_seq_len, 8, batch_sizes, batch_sizes[-1], MAX_WINDOW_ROWS),
        state=(RING,),
        inputs=(),
        blocks=block_layouts(),
        ops=knobs or {},
        graphs=(),
        weights=WeightsFile("weights.safetensors", 1000, 8, ZEROS, ZEROS, ()),
        golden=file_record(folder / "golden.safetensors"),
        tokenizer=tuple(files),
    )
    write_manifest(folder, manifest)
    return folder


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST_FILE).write_text(to_json(manifest))


def replace_golden(folder: Path, manifest: Manifest, content: bytes) -> None:
    """Writes another golden file and records it."""
    path = folder / "golden.safetensors"
    path.write_bytes(content)
    write_manifest(folder, dataclasses.replace(manifest, golden=file_record(path)))
