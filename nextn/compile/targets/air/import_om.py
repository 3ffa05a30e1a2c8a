"""`--import-om`: an artifact of `.air` graphs becomes one of `.om` files that were built from it elsewhere.

The `.air` files and the script stay, so that files for another chip can be built and imported later.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nextn.compile.build.artifact_files import file_sha256, fsync
from nextn.compile.build.progress import readable_bytes, warn
from nextn.compile.targets.air.om_interface import check_interfaces
from nextn.compile.targets.air.target import SOC_FILE
from nextn.runtime.contract.errors import ArtifactError, UsageError
from nextn.runtime.contract.manifest import MANIFEST_FILE, GraphRecord, Manifest, parse_manifest, to_json

_USED = ("import_om", "output", "json", "debug")

_PART = ".part"
"""Of the hidden files that an import writes first and then renames; a killed one leaves them."""


def import_command(arguments: argparse.Namespace, idle: argparse.Namespace) -> None:
    """Imports, and prints what was done.

    Args:
        idle: an empty command line.

    Raises the errors of `import_om`, UsageError for other flags.
    """
    _check_alone(arguments, idle)
    summary = import_om(Path(arguments.import_om), Path(arguments.output))
    if summary.unchecked is not None:
        warn(f"inputs and outputs of the .om files were not checked: {summary.unchecked}")
    if arguments.json:
        print(json.dumps(asdict(summary)))
    elif summary.up_to_date:
        print(f"{summary.artifact} is up to date")
    else:
        chip = f" for {summary.soc}" if summary.soc is not None else ""
        size = readable_bytes(summary.bytes)
        print(f"{summary.artifact}: {summary.graphs} graphs{chip} imported, {size}")


def _check_alone(arguments: argparse.Namespace, idle: argparse.Namespace) -> None:
    if not arguments.import_om or not arguments.output:
        raise UsageError("--import-om takes two folders", expected="--import-om DIR -o ARTIFACT")
    for name, value in vars(arguments).items():
        if name not in _USED and value != getattr(idle, name):
            flag = "CHECKPOINT" if name == "checkpoint" else "--" + name.replace("_", "-")
            raise UsageError(f"--import-om completes an artifact as it is: {flag} would do nothing")


@dataclass(frozen=True)
class ImportSummary:
    """What an import did. `unchecked` says why inputs and outputs were not compared, None if they were."""

    artifact: str
    up_to_date: bool
    graphs: int
    bytes: int
    soc: str | None
    unchecked: str | None


def import_om(folder: Path, artifact: Path) -> ImportSummary:
    """Copies `folder`'s .om files into `artifact` and records them in its manifest.

    Files come to their names before the manifest does: an import that is killed leaves an `air` artifact as
    it was; if it was to replace .om files, an artifact that is refused until the import is run again.

    Raises UsageError if `artifact` is not one of .air or .om graphs, ArtifactError if it is damaged, or a
    file is missing, empty, of no graph of the artifact, or has other inputs or outputs than its graph.
    """
    manifest = _read_manifest(artifact)
    sources = _sources(folder, [graph.spec.key for graph in manifest.graphs])
    soc = _soc(folder)
    unchecked = check_interfaces([(sources[graph.spec.key], graph) for graph in manifest.graphs])
    graphs = tuple(_record(graph, sources[graph.spec.key]) for graph in manifest.graphs)
    target = replace(manifest.target, emit="om", soc=soc)
    text = to_json(replace(manifest, target=target, graphs=graphs))
    # The reader's own checks, before anything is changed.
    imported = parse_manifest(text, artifact / MANIFEST_FILE)
    missing = [graph for graph in graphs if not _is_there(artifact, graph)]
    up_to_date = not missing and imported == manifest
    remove_leftover_parts(artifact)
    if not up_to_date:
        _install(artifact, [(sources[graph.spec.key], graph.file) for graph in missing], text)
    total = sum(graph.bytes for graph in graphs)
    return ImportSummary(str(artifact), up_to_date, len(graphs), total, soc, unchecked)


def _read_manifest(artifact: Path) -> Manifest:
    path = artifact / MANIFEST_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError("manifest cannot be read", file=path, found=error) from error
    manifest = parse_manifest(text, path)
    if manifest.target.emit not in ("air", "om"):
        raise UsageError(
            "--import-om completes an artifact of GE IR",
            file=path,
            key="target.emit",
            expected="air",
            found=manifest.target.emit,
        )
    return manifest


def _sources(folder: Path, keys: list[str]) -> dict[str, Path]:
    """The .om file of each graph. Other files are what atc leaves beside them."""
    if not folder.is_dir():
        raise UsageError("--import-om needs a folder of .om files", file=folder)
    found = {path.name: path for path in folder.iterdir() if path.suffix == ".om"}
    wanted = {f"{key}.om": key for key in keys}
    if strange := sorted(found.keys() - wanted.keys()):
        raise ArtifactError("an .om file of no graph of the artifact", file=folder / strange[0])
    if missing := [name for name in wanted if name not in found]:
        raise ArtifactError(
            "graphs have no .om file: run build_om.sh to its end",
            file=folder,
            expected=", ".join(missing),
            found=f"{len(found)} of {len(wanted)} files",
        )
    for path in found.values():
        _check_file(path, folder)
    return {key: found[name] for name, key in wanted.items()}


def _check_file(path: Path, folder: Path) -> None:
    if not path.is_file():  # also a link that leads to itself, which has no end to resolve to
        raise ArtifactError("not a file", file=path)
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise ArtifactError("a link out of the folder", file=path, found=path.resolve())
    if path.stat().st_size == 0:
        raise ArtifactError("the file is empty", file=path, expected="a compiled graph", found="0 bytes")


def _soc(folder: Path) -> str | None:
    """The chip the script compiled for, None if other means built the files."""
    path = folder / SOC_FILE
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if not re.fullmatch(r"[A-Za-z0-9_\-]{1,64}", text):
        raise ArtifactError("no name of a chip", file=path, expected="for example Ascend910B1", found=text)
    return text


def _record(graph: GraphRecord, source: Path) -> GraphRecord:
    file = graph.file.rpartition("/")[0] + f"/{graph.spec.key}.om"
    return replace(graph, file=file, sha256=file_sha256(source), bytes=source.stat().st_size)


def _is_there(artifact: Path, graph: GraphRecord) -> bool:
    path = artifact / graph.file
    return path.is_file() and not path.is_symlink() and file_sha256(path) == graph.sha256


def _install(artifact: Path, files: list[tuple[Path, str]], manifest_text: str) -> None:
    finals = [artifact / file for _, file in files]
    for (source, _), final in zip(files, finals, strict=True):
        shutil.copyfile(source, part_of(final))
        fsync(part_of(final))
    manifest = artifact / MANIFEST_FILE
    part_of(manifest).write_text(manifest_text, encoding="utf-8")
    fsync(part_of(manifest))
    for final in finals:
        os.replace(part_of(final), final)
    for folder in {final.parent for final in finals}:
        fsync(folder)
    os.replace(part_of(manifest), manifest)
    fsync(artifact)


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
