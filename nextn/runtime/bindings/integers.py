"""Whole numbers from Python callers: any kind of integer, numpy's too, checked before C sees it."""

from __future__ import annotations

import operator

from nextn.runtime.contract.errors import UsageError


def as_integer(value: object) -> int | None:
    """`value` as an int; None for booleans and for what is no integer, such as 1.0 and "1"."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def integer_argument(name: str, value: object, low: int, high: int) -> int:
    """An argument that must lie in low..high; ctypes would wrap one that does not fit. Raises UsageError."""
    number = as_integer(value)
    if number is None:
        raise UsageError("bad argument", key=name, expected="an integer", found=type(value).__name__)
    if not low <= number <= high:
        # Beyond Python's digit limit an integer cannot be printed.
        found: object = number if number.bit_length() <= 64 else f"{number.bit_length()} bits"
        raise UsageError("argument out of range", key=name, expected=f"{low}..{high}", found=found)
    return number
