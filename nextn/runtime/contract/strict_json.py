"""Decodes parsed JSON into frozen dataclasses by their annotations, accepting nothing else."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterable
from typing import Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")

LARGEST_DEPTH = 64
"""Levels of objects and arrays; no file of ours or of a checkpoint has more than eight."""


class DecodeFault(Exception):
    """A value that does not fit: the dotted key, what was expected there, what was found."""

    def __init__(self, key: str, expected: object, found: object) -> None:
        super().__init__(f"{key}: expected {expected}, found {found}")
        self.key = key
        self.expected = expected
        self.found = _shortened(found)


class RepeatedKey(ValueError):
    """An object has `key` twice: readers differ in which of the values they take."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key {_shortened(key)} is repeated")
        self.key = key


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """`object_pairs_hook` for `json.loads`. Raises RepeatedKey."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise RepeatedKey(key)
        found[key] = value
    return found


def parse_unique(text: str) -> object:
    """`json.loads` that refuses a repeated key, NaN and absurd nesting. Raises ValueError."""
    parsed: object = json.loads(text, object_pairs_hook=unique_keys, parse_constant=_no_constant)
    check_depth(parsed)
    return parsed


def check_depth(parsed: object) -> None:
    """Raises ValueError for values nested so deep that showing or walking them would exhaust the stack."""
    level: list[object] = [[parsed]]
    for _ in range(LARGEST_DEPTH + 1):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else cast(Iterable[object], item))
            if isinstance(child, dict | list | tuple)
        ]
        if not level:
            return
    raise ValueError(f"nested deeper than {LARGEST_DEPTH} levels")


def decode(record: type[Record], value: object, *, ignore_unknown: bool = False) -> Record:
    """Builds `record` from a JSON object.

    Every field must be present with exactly the annotated JSON type (`true` is no integer, `1.0` is no
    integer); unknown keys are refused unless `ignore_unknown`. Raises DecodeFault.
    """
    return cast(Record, _Decoder(ignore_unknown).dataclass(record, value, ""))


class _Decoder:
    def __init__(self, ignore_unknown: bool) -> None:
        self._ignore_unknown = ignore_unknown

    def dataclass(self, record: type, value: object, key: str) -> Any:
        found = self._object(value, key)
        hints = get_type_hints(record)
        names = [field.name for field in dataclasses.fields(record)]
        prefix = f"{key}." if key else ""
        for name in names:
            if name not in found:
                raise DecodeFault(f"{prefix}{name}", "present", "absent")
        for name in found:
            if name not in names and not self._ignore_unknown:
                raise DecodeFault(f"{prefix}{name}", "no such key", found[name])
        return record(**{name: self._value(hints[name], found[name], f"{prefix}{name}") for name in names})

    def _value(self, hint: Any, value: object, key: str) -> Any:
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is Any:
            return value
        if dataclasses.is_dataclass(hint):
            return self.dataclass(cast(type, hint), value, key)
        if origin is Literal:
            if value not in arguments or isinstance(value, bool):
                raise DecodeFault(key, " or ".join(map(str, arguments)), value)
            return value
        if origin in (Union, types.UnionType):
            present = [argument for argument in arguments if argument is not types.NoneType]
            return None if value is None else self._value(present[0], value, key)
        if origin is tuple:
            return self._tuple(arguments, value, key)
        if origin is dict:
            found = self._object(value, key)
            return {name: self._value(arguments[1], item, f"{key}.{name}") for name, item in found.items()}
        if type(value) is not hint:
            raise DecodeFault(key, {int: "an integer", str: "a string"}.get(hint, hint.__name__), value)
        return value

    def _tuple(self, arguments: tuple[Any, ...], value: object, key: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise DecodeFault(key, "an array", value)
        hints = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(hints) != len(value):
            raise DecodeFault(key, f"{len(hints)} values", f"{len(value)} values")
        return tuple(
            self._value(hint, item, f"{key}[{index}]")
            for index, (hint, item) in enumerate(zip(hints, value, strict=True))
        )

    @staticmethod
    def _object(value: object, key: str) -> dict[str, object]:
        if not isinstance(value, dict):
            raise DecodeFault(key, "an object", value)
        return value


def _shortened(found: object) -> str:
    text = repr(found) if isinstance(found, str) else str(found)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
