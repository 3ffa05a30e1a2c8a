"""SHA-256 of files, as manifests record them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WeightsHashes:
    """Size and hashes of a safetensors file; `header_bytes` counts its length field too."""

    bytes: int
    header_bytes: int
    header_sha256: str
    body_sha256: str

    @property
    def whole(self) -> str:
        """One text that tells the file from every other."""
        return f"{self.header_sha256} {self.body_sha256}"


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_hashes(path: Path) -> WeightsHashes:
    """Reads the whole file; what is no safetensors file gives hashes that match nothing."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        header = file.read(8)
        header += file.read(min(int.from_bytes(header, "little"), size))
        body = hashlib.file_digest(file, "sha256").hexdigest()
    return WeightsHashes(size, len(header), hashlib.sha256(header).hexdigest(), body)
