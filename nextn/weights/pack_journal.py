"""The journal of a packing: one line per finished tensor, in a file beside the partial one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nextn.runtime.contract.errors import ExecutionError
from nextn.weights.aligned_file import PARTIAL_SUFFIX

Entry = dict[str, Any]
"""A manifest entry."""


class PackJournal:
    """Entries of finished tensors, valid while `made_from` stays the same.

    A line may name data that the partial file lost in a crash of the machine, so data is hashed before an
    entry is believed. Raises ExecutionError if the journal cannot be written.
    """

    def __init__(self, out_path: Path, made_from: str) -> None:
        self._path = out_path.with_name(f"{out_path.name}{PARTIAL_SUFFIX}.journal")
        self._made_from = made_from
        self.finished = self._read()
        """By tensor name."""
        if not self.finished:
            self._write("w", {"made_from": made_from})

    def add(self, entry: Entry) -> None:
        """Record a finished tensor."""
        self._write("a", entry)

    def remove(self) -> None:
        """Forget everything: the file is complete, or gone."""
        self._path.unlink(missing_ok=True)

    def _write(self, mode: str, value: object) -> None:
        try:
            with open(self._path, mode, encoding="utf-8") as file:
                file.write(json.dumps(value) + "\n")
        except OSError as error:
            raise ExecutionError(f"cannot write weights: {error.strerror}", file=self._path) from error

    def _cut(self, size: int) -> None:
        """Drops half a line at the end, so that the next entry starts a line."""
        try:
            os.truncate(self._path, size)
        except OSError as error:
            raise ExecutionError(f"cannot write weights: {error.strerror}", file=self._path) from error

    def _read(self) -> dict[str, Entry]:
        finished: dict[str, Entry] = {}
        sound = 0
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
            if not lines or json.loads(lines[0]) != {"made_from": self._made_from}:
                return {}
            sound = len(lines[0])
            for line in lines[1:]:
                if not line.endswith(b"\n"):
                    break
                entry = json.loads(line)
                finished[entry["name"]] = entry
                sound += len(line)
        except (OSError, ValueError, KeyError, TypeError):
            # Only the last line can be cut short; the lines before it count.
            pass
        if finished:
            self._cut(sound)
        return finished
