"""The names of a graph's inputs in GE IR."""

from __future__ import annotations

from collections.abc import Collection


def input_name(tensor: str) -> str:
    """Of a tensor by its name in the manifest; GE's names have no dots."""
    return tensor.replace(".", "_")


def is_another_input(found: str, expected: str, known: Collection[str]) -> bool:
    """Whether an input that should be `expected` is certainly another one.

    It is if it has the very name of another tensor, one of `known`. Compilers add to names, so that a name of
    no tensor says nothing, nor does one that contains the expected name.
    """
    return found in known and expected not in found
