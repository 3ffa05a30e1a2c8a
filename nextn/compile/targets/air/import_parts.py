"""The hidden files that an import of `.om` files writes first and then renames; a killed one leaves them."""

from __future__ import annotations

from pathlib import Path

from nextn.runtime.contract.manifest import MANIFEST_FILE

_PART = ".part"


def part_of(final: Path) -> Path:
    """Where `final` is written before it has its name."""
    return final.with_name(f".{final.name}{_PART}")


def leftover_parts(artifact: Path) -> list[Path]:
    """What killed imports left in `artifact`: parts of its manifest and, in its folders, of graphs."""
    folders = [path for path in artifact.iterdir() if path.is_dir() and not path.is_symlink()]
    parts = [part for folder in folders for part in folder.glob(f".*.om{_PART}")]
    return [part for part in (part_of(artifact / MANIFEST_FILE), *parts) if part.is_file()]


def remove_leftover_parts(artifact: Path) -> None:
    """Raises OSError if the folder cannot be changed."""
    for part in leftover_parts(artifact):
        part.unlink()
