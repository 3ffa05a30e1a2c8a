"""Typed reading of JSON objects: every missing, ill-typed or out-of-range value becomes a named error."""

from __future__ import annotations

import json
import math
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from nextn.graphs.config import LARGEST_COUNTS, LARGEST_INTEGER, LARGEST_SCHEDULE
from nextn.runtime.contract.errors import CheckpointError
from nextn.runtime.contract.strict_json import RepeatedKey, check_depth, unique_keys

LARGEST_JSON_BYTES = 32 * 1024 * 1024
"""Bound on a JSON file: the index of the largest release, with 145 116 tensors, takes 14 MB. Parsing can need
some twenty times the bytes of the text."""


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in `path`.

    Raises:
        CheckpointError: the file is absent, unreadable, not UTF-8 JSON, not an object, nested absurdly deep,
            or repeats a key.
    """
    try:
        parsed: object = json.loads(_read_text(path), object_pairs_hook=unique_keys)
        check_depth(parsed)
    except OSError as error:
        raise CheckpointError(
            "cannot read file", file=path, expected="a readable JSON file", found=error.strerror
        ) from error
    except RepeatedKey as error:
        raise CheckpointError(
            "invalid JSON", file=path, key=error.key, expected="each key once", found="a repeated key"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError("invalid JSON", file=path, expected="a JSON object", found=error) from error
    if not isinstance(parsed, dict):
        raise CheckpointError(
            "invalid JSON", file=path, expected="a JSON object", found=type(parsed).__name__
        )
    return parsed


def _read_text(path: Path) -> str:
    # Checked before opening: opening a pipe would wait for a writer.
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(
            "cannot read file", file=path, expected="a readable JSON file", found="no regular file"
        )
    if status.st_size > LARGEST_JSON_BYTES:
        raise CheckpointError(
            "JSON file too large",
            file=path,
            expected=f"at most {LARGEST_JSON_BYTES} bytes",
            found=f"{status.st_size} bytes",
        )
    # Editors of Windows begin a file with a byte order mark.
    return path.read_text(encoding="utf-8-sig")


class FieldReader:
    """Reads typed values out of one JSON object and remembers which keys were read.

    Args:
        raw: the object.
        file: named in errors.
        prefix: path of a nested object, e.g. `rope_scaling.`.
    """

    def __init__(
        self,
        raw: Mapping[str, object],
        file: object,
        prefix: str = "",
    ) -> None:
        self.raw = raw
        self._file = file
        self._prefix = prefix
        self._read: set[str] = set()
        self._children: list[FieldReader] = []

    def refuse(
        self, key: str, expected: object, found: object, message: str = "unusable config value"
    ) -> NoReturn:
        """Raise `CheckpointError` for `key`."""
        raise CheckpointError(
            message, file=self._file, key=self._prefix + key, expected=expected, found=_shown(found)
        )

    def unread_keys(self, ignored: Iterable[str] = ()) -> list[str]:
        """Full names of the keys, nested ones too, that were never read and are not in `ignored`."""
        known = self._read.union(ignored)
        own = [self._prefix + key for key in self.raw if key not in known]
        return own + [key for child in self._children for key in child.unread_keys()]

    def has(self, key: str) -> bool:
        """Whether `key` is present with a value other than null; counts as reading it."""
        self._read.add(key)
        return self.raw.get(key) is not None

    def value(self, key: str, expected: str) -> object:
        """The value of a key that must be present and not null."""
        if not self.has(key):
            self.refuse(key, expected, "null" if key in self.raw else "nothing", "missing config value")
        return self.raw[key]

    def integer(self, key: str, minimum: int = 1, maximum: int = LARGEST_INTEGER) -> int:
        maximum = min(maximum, LARGEST_COUNTS.get(key, maximum))
        expected = f"an integer in [{minimum}, {maximum}]"
        found = self.value(key, expected)
        number = whole_number(found)
        if number is None or not minimum <= number <= maximum:
            self.refuse(key, expected, found)
        return number

    def positive(self, key: str) -> float:
        return self._number(key, "a finite number above 0", math.ulp(0.0), sys.float_info.max)

    def number(self, key: str, minimum: float, maximum: float) -> float:
        return self._number(key, f"a number in [{minimum:g}, {maximum:g}]", minimum, maximum)

    def _number(self, key: str, expected: str, minimum: float, maximum: float) -> float:
        found = self.value(key, expected)
        if isinstance(found, bool) or not isinstance(found, int | float):
            self.refuse(key, expected, found)
        try:
            number = float(found)
        except OverflowError:
            number = math.inf
        if not minimum <= number <= maximum:
            self.refuse(key, expected, found)
        return number

    def boolean(self, key: str) -> bool:
        found = self.value(key, "true or false")
        if not isinstance(found, bool):
            self.refuse(key, "true or false", found)
        return found

    def array(self, key: str, expected: str = "an array") -> list[object]:
        found = self.value(key, expected)
        if not isinstance(found, list):
            self.refuse(key, expected, found)
        if len(found) > LARGEST_SCHEDULE:
            self.refuse(key, f"at most {LARGEST_SCHEDULE} entries", f"{len(found)} entries")
        return found

    def integers(self, key: str, minimum: int = 0, maximum: int = LARGEST_INTEGER) -> tuple[int, ...]:
        expected = f"integers in [{minimum}, {maximum}]"
        values: list[int] = []
        for found in self.array(key, f"an array of {expected}"):
            number = whole_number(found)
            if number is None or not minimum <= number <= maximum:
                self.refuse(key, expected, found)
            values.append(number)
        return tuple(values)

    def constant(self, key: str, required: bool | int | float | str) -> None:
        """Accept an absent or null key, and otherwise only the value that the architecture fixes."""
        if not self.has(key):
            return
        found = self.raw[key]
        same_type = isinstance(found, bool) == isinstance(required, bool)
        if not same_type or found != required:
            self.refuse(key, json.dumps(required), found, "unsupported architecture value")

    def child(self, key: str) -> FieldReader | None:
        """Reader of a nested object; None when absent or null."""
        if not self.has(key):
            return None
        found = self.raw[key]
        if not isinstance(found, dict):
            self.refuse(key, "an object", found)
        nested = FieldReader(found, self._file, f"{self._prefix}{key}.")
        self._children.append(nested)
        return nested


def whole_number(value: object) -> int | None:
    """A JSON integer, or a float without a fraction, which some converters write; None for all else."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_INTEGER:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shown(value: object) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError):
        # Integers beyond Python's digit limit cannot be printed.
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."
