"""What may be done with a folder that already has the artifact's name."""

from __future__ import annotations

from pathlib import Path

from nextn.compile.build.artifact_files import WeightsHashes, file_sha256, weights_hashes
from nextn.compile.build.inputs import CompileInputs
from nextn.compile.targets.registry import leftovers, own_entries
from nextn.compile.targets.target import GRAPHS_FOLDER, WEIGHTS_FILE
from nextn.runtime.contract.errors import ArtifactError, UsageError
from nextn.runtime.contract.golden_format import GOLDEN_FILE
from nextn.runtime.contract.manifest import MANIFEST_FILE, FileRecord, GraphRecord, Manifest, parse_manifest
from nextn.weights.checkpoint_files import TOKENIZER_FILES

_ARTIFACT_ENTRIES = {MANIFEST_FILE, WEIGHTS_FILE, GOLDEN_FILE, GRAPHS_FOLDER, *TOKENIZER_FILES}


def reusable(output: Path, inputs: CompileInputs, force: bool) -> Manifest | None:
    """The manifest of an undamaged artifact at `output` made from the same inputs; None if one must be built.

    What a killed command left in such an artifact is removed.

    Raises UsageError if something else is there: without `force` whatever it is, with `force` anything but
    an artifact, which alone may be replaced.
    """
    _check_parents(output)
    if not output.exists() and not output.is_symlink():
        return None
    if not output.is_dir() or output.is_symlink():
        raise UsageError("the output exists and is not a folder", file=output)
    entries = {path.name for path in output.iterdir()}
    if not entries:
        return None
    left = {path.name for path in leftovers(output)}
    foreign = sorted(entries - _ARTIFACT_ENTRIES - own_entries() - left)
    if MANIFEST_FILE not in entries or foreign:
        raise UsageError(
            "the output folder is not an artifact and will not be replaced",
            file=output,
            found=foreign[0] if foreign else f"no {MANIFEST_FILE}",
        )
    try:
        path = output / MANIFEST_FILE
        manifest = parse_manifest(path.read_text(encoding="utf-8"), path)
        _check_files(output, manifest)
    except (ArtifactError, OSError, UnicodeDecodeError) as error:
        if force:
            return None
        raise UsageError(f"the output exists and is damaged; --force replaces it: {error}") from error
    if inputs.made(manifest):
        for path in leftovers(output):
            path.unlink()
        return manifest
    if force:
        return None
    raise UsageError(
        "the output exists and was made from other inputs or options; --force replaces it", file=output
    )


def _check_parents(output: Path) -> None:
    """The folders that are there are folders; the others will be made."""
    for parent in output.parents:
        if parent.exists() or parent.is_symlink():
            if not parent.is_dir():
                raise UsageError(
                    "the output is below something that is not a folder",
                    file=output,
                    expected="a folder",
                    found=parent,
                )
            return


def _check_files(output: Path, manifest: Manifest) -> None:
    records: list[GraphRecord | FileRecord] = [*manifest.graphs, manifest.golden, *manifest.tokenizer]
    for record in records:
        found = file_sha256(output / record.file)
        if found != record.sha256:
            raise ArtifactError(
                "file is damaged", file=output / record.file, expected=record.sha256, found=found
            )
    weights = manifest.weights
    recorded = WeightsHashes(weights.bytes, weights.header_bytes, weights.header_sha256, weights.body_sha256)
    if weights_hashes(output / weights.file) != recorded:
        raise ArtifactError("file is damaged", file=output / weights.file)
