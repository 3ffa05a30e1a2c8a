"""Files of an artifact: their hashes, and the hidden folder they are made in.

What a killed compile leaves in that folder, the next one adopts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nextn.runtime.contract.errors import ExecutionError

_LOCK = ".lock"
_FINISHED = ".finished"
_SCRATCH = ".scratch"


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


class PartialArtifact:
    """`.<name>.partial-<identity>` beside the artifact; only `publish` gives it the artifact's name.

    Finished files stay with a record of what they were made from, so that a re-run of the same compile
    adopts them. Use as a context manager: it holds a lock, and removes scratch files on the way out.
    Raises ExecutionError on entry if another process is writing the same artifact.
    """

    def __init__(self, output: Path, identity: str) -> None:
        self.output = output
        self.folder = output.parent / f".{output.name}.partial-{identity[:16]}"
        self._lock_file = -1

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock(self.folder)
        if self._lock_file < 0:
            raise ExecutionError("another nextn-compile is writing this artifact", file=self.output)
        self._remove_stale()
        (self.folder / _FINISHED).mkdir(exist_ok=True)
        self._finish_moves()
        shutil.rmtree(self.folder / _SCRATCH, ignore_errors=True)
        (self.folder / _SCRATCH).mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder / _SCRATCH, ignore_errors=True)
        os.close(self._lock_file)

    def scratch(self) -> Path:
        """A fresh folder for temporary files, on the artifact's own file system."""
        return Path(tempfile.mkdtemp(dir=self.folder / _SCRATCH))

    def adopt(self, file: str, made_from: str, digest: Callable[[Path], str] = file_sha256) -> Any:
        """The record kept with `file` if it was made from the same inputs and is undamaged, else None.

        `digest` reads the file whole and says what was recorded of it.
        """
        try:
            kept = json.loads(self._record(file).read_text())
            if kept["made_from"] == made_from and kept["digest"] == digest(self.folder / file):
                return kept["record"]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def keep(self, source: Path, file: str, made_from: str, record: Any) -> None:
        """Moves `source`, a scratch file, to `file` and makes it survive a crash."""
        (self.folder / file).parent.mkdir(exist_ok=True)
        fsync(source)
        # The record comes first: killed between the two, the next run finds what is still to be moved.
        self.record(file, made_from, record, file_sha256(source), source)
        os.replace(source, self.folder / file)

    def record(self, file: str, made_from: str, record: Any, digest: str, source: Path | None = None) -> None:
        """Keeps `record` with `file`, which is on disk: at its place already, or at `source`."""
        kept = {"made_from": made_from, "digest": digest, "file": file, "record": record}
        if source is not None:
            kept["source"] = source.relative_to(self.folder).as_posix()
        temporary = self._record(file).with_suffix(".tmp")
        temporary.write_text(json.dumps(kept))
        fsync(temporary)
        os.replace(temporary, self._record(file))

    def publish(self, files: set[str], manifest_text: str, manifest_file: str) -> None:
        """Drops what is not in `files`, adds the manifest, and renames the folder to its final name.

        An artifact of that name is moved aside first and removed afterwards.
        """
        (self.folder / manifest_file).write_text(manifest_text)
        for path in sorted(self.folder.rglob("*"), reverse=True):
            relative = path.relative_to(self.folder)
            if path.is_dir():
                if relative.parts[0] in (_FINISHED, _SCRATCH) or not any(path.iterdir()):
                    shutil.rmtree(path)
            elif relative.as_posix() not in files | {manifest_file}:
                path.unlink()
        for path in self.folder.rglob("*"):
            fsync(path)
        fsync(self.folder)
        replaced = self.output.with_name(f".{self.output.name}.replaced-{os.getpid()}")
        if self.output.exists() and any(self.output.iterdir()):
            os.rename(self.output, replaced)
        os.rename(self.folder, self.output)
        fsync(self.output.parent)
        shutil.rmtree(replaced, ignore_errors=True)

    def _record(self, file: str) -> Path:
        return self.folder / _FINISHED / f"{file.replace('/', '.')}.json"

    def _finish_moves(self) -> None:
        """Moves the files that a killed run had recorded; whether they are sound, `adopt` tells."""
        for path in (self.folder / _FINISHED).glob("*.json"):
            try:
                kept = json.loads(path.read_text())
                if "source" in kept:
                    os.replace(self.folder / kept["source"], self.folder / kept["file"])
            except (OSError, ValueError, KeyError, TypeError):
                # Mostly: moved already.
                pass

    def _remove_stale(self) -> None:
        """Other partial folders of this artifact belong to other options; those of live processes stay."""
        for folder in self._siblings("partial"):
            if folder != self.folder and (lock := _lock(folder)) >= 0:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
        if self.output.exists():
            for folder in self._siblings("replaced"):
                shutil.rmtree(folder, ignore_errors=True)

    def _siblings(self, purpose: str) -> list[Path]:
        prefix = f".{self.output.name}.{purpose}-"
        return [
            path for path in self.output.parent.iterdir() if path.name.startswith(prefix) and path.is_dir()
        ]


def fsync(path: Path) -> None:
    """Forces a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int:
    """A descriptor that holds the folder's lock until it is closed, or -1 if another process holds it."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor
