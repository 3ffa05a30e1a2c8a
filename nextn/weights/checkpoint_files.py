"""The files of a checkpoint folder beside its tensors, and where links in the folder may lead."""

from __future__ import annotations

from pathlib import Path

from nextn.runtime.contract.errors import CheckpointError

CONFIG_FILES = ("config.json", "generation_config.json")

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
"""The files about text that an artifact carries along."""


def refuse_link_out(folder: Path, file: Path) -> None:
    """Raise if `file`, of the checkpoint `folder`, is a link that leads out of it: a folder that someone
    else made must not have other files of this machine read, or copied into an artifact.

    A link to nowhere is left to whoever reads the file.
    """
    try:
        target = file.resolve()
    except (OSError, RuntimeError, ValueError):
        return
    if not any(target.is_relative_to(root) for root in _allowed_roots(folder)):
        raise CheckpointError("link leaves the checkpoint", file=file, expected=folder, found=target)


def _allowed_roots(folder: Path) -> list[Path]:
    resolved = folder.resolve()
    roots = [resolved]
    if resolved.parent.name == "snapshots":
        # The Hugging Face cache keeps files once, in blobs/, and fills snapshots/<revision>/ with links.
        roots.append(resolved.parent.parent / "blobs")
    return roots
