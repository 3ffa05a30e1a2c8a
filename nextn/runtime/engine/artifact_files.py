"""Files of an artifact that Python reads itself, checked against the manifest before use."""

from __future__ import annotations

import hashlib
from pathlib import Path

from nextn.runtime.contract.errors import ArtifactError
from nextn.runtime.contract.manifest import FileRecord, Manifest
from nextn.runtime.engine.text import TOKENIZER_FILE, Tokenizer


def checked_path(directory: Path, record: FileRecord) -> Path:
    """Path of the file. Raises ArtifactError unless its size and SHA-256 are the recorded ones."""
    path = directory / record.file
    try:
        size = path.stat().st_size
        if size != record.bytes:
            raise ArtifactError("file is damaged", file=path, expected=f"{record.bytes} bytes", found=size)
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ArtifactError("file cannot be read", file=path, found=error.strerror) from error
    if digest != record.sha256:
        raise ArtifactError("file is damaged", file=path, expected=f"sha256 {record.sha256}", found=digest)
    return path


def open_tokenizer(directory: Path, manifest: Manifest) -> tuple[Tokenizer | None, ArtifactError | None]:
    """The artifact's tokenizer, or None and what is wrong with its file, if it has one.

    The file came from the checkpoint as it was, and token ids need none.

    Raises ArtifactError if it has changed since.
    """
    for record in manifest.tokenizer:
        if record.file.rpartition("/")[2] == TOKENIZER_FILE:
            path = checked_path(directory, record)
            try:
                return Tokenizer(path), None
            except ArtifactError as fault:
                return None, fault
    return None, None
