"""The files of a checkpoint folder beside its tensors, and where links in the folder may lead."""

from __future__ import annotations

import os
import re
from pathlib import Path

from nextn.runtime.contract.errors import CheckpointError

CONFIG_FILES = ("config.json", "generation_config.json")

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
"""The files about text that an artifact carries along."""


_BLOB_NAME = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
"""Names of the Hugging Face cache's files: the Git or SHA-256 hash of what is in them."""

_MOST_LINKS = 40
"""Links to links that Linux follows."""


def files_of(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that match, sorted, without hidden ones.

    macOS writes `._NAME` beside each file on disks of other systems; downloads in progress are hidden too.
    """
    return sorted(file for file in folder.glob(pattern) if not file.name.startswith("."))


def refuse_link_out(folder: Path, file: Path) -> None:
    """Raise if `file`, of the checkpoint `folder`, is a link that leads out of it.

    A folder that someone else made must not have other files of this machine read, or copied into an
    artifact. Links into the Hugging Face cache are followed. A link to nowhere is left to whoever reads
    the file.
    """
    try:
        target = file.resolve()
    except (OSError, RuntimeError, ValueError):
        return
    if any(target.is_relative_to(root) for root in _allowed_roots(folder)) or _is_blob_of_a_cache(file):
        return
    raise CheckpointError("link leaves the checkpoint", file=file, expected=folder, found=target)


def _allowed_roots(folder: Path) -> list[Path]:
    """The folder; and if it is, or lies in, `snapshots/<revision>` of a cache, the `blobs` beside that."""
    roots = [folder.resolve()]
    for place in (folder.absolute(), folder.resolve()):
        for ancestor in place.parents:
            if ancestor.name == "snapshots":
                roots.append((ancestor.parent / "blobs").resolve())
    return roots


def _is_blob_of_a_cache(file: Path) -> bool:
    """Whether following `file` leads to `models--ORG--NAME/blobs/<hash>`, with that name on the way.

    The name of a blob is a hash of its content, so that a link names nothing that its maker did not know.
    `blobs`, or what it lies in, may be a link to another disk; the blob itself may not.
    """
    target = file.resolve()
    for _ in range(_MOST_LINKS):
        if not file.is_symlink():
            return False
        file = Path(os.path.normpath(file.parent / file.readlink()))
        blobs, repository = file.parent, file.parent.parent
        if blobs.name == "blobs" and repository.name.startswith("models--") and not file.is_symlink():
            # `..` behind a linked folder: the path as it is written may be another file.
            return _BLOB_NAME.fullmatch(file.name) is not None and file.resolve() == target
    return False
