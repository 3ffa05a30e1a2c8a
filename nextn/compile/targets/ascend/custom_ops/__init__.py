"""Operators that torch_npu lacks, or has no converter to GE IR for: their schemas, shapes and converters.

Those of CANN's operator package for DeepSeek-V4 have the package's schemas and names, where it is not
installed. Arguments that have their default do not reach a converter of TorchAir: each has the schema's own
defaults.
"""

from __future__ import annotations

import functools
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


@functools.cache
def declare_custom_ops() -> None:
    """Makes the operators known to torch and to TorchAir. Needs torch_npu to be imported."""
    from nextn.compile.targets.ascend.custom_ops import attention, hyper_connection

    for module in (attention, hyper_connection):
        for operator in module.OPERATORS:
            operator.declare()
        module.register_converters()
