"""`Declared`: an operator that torch does not know, until it is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Options = Mapping[str, bool | int | float | str]
"""Options of an operator by name, with their defaults: attributes in GE IR."""


@dataclass(frozen=True)
class Declared:
    """`schema` as torch writes it, without the name; `shapes` gives empty results for fake tensors."""

    library: str
    name: str
    schema: str
    shapes: Callable[..., Any]

    def declare(self) -> None:
        """Nothing if its package is installed and has declared it."""
        if not hasattr(getattr(torch.ops, self.library), self.name):
            torch.library.define(f"{self.library}::{self.name}", self.schema)
            torch.library.impl(f"{self.library}::{self.name}", "Meta", self.shapes)


def optional_tensors(names: tuple[str, ...]) -> str:
    """Their part of a schema."""
    return ", ".join(f"Tensor? {name}=None" for name in names)


def options_schema(options: Options) -> str:
    """Their part of a schema."""
    return ", ".join(f"{type(default).__name__} {name}={default!r}" for name, default in options.items())


def attributes(options: Options, given: Mapping[str, Any]) -> dict[str, Any]:
    """TorchAir's attributes for options that were given, or not."""
    from torchair.ge import attr

    kinds = {bool: attr.Bool, int: attr.Int, float: attr.Float, str: attr.Str}
    return {name: kinds[type(default)](given.get(name, default)) for name, default in options.items()}
