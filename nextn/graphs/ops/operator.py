"""Operators of the op layer that an exported graph keeps whole, so that a lowering can choose their form.

A function becomes `torch.ops.nextn.nextn_<name>`, with itself as the composite implementation: it runs as the
plain aten form wherever nobody puts another in its place, in eager mode and in every lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

_LIBRARY = torch.library.Library("nextn", "FRAGMENT")
_PREFIX = "nextn_"

Function = TypeVar("Function", bound=Callable[..., Any])

COMPOSITES: dict[torch._ops.OpOverload, Callable[..., Any]] = {}
"""The plain aten form of every operator made here."""


def composite(schema: str) -> Callable[[Function], Function]:
    """Makes an operator of a function of tensors and scalars, under its own name.

    Args:
        schema: arguments and results as torch writes them, `(Tensor x, float eps) -> Tensor`; the results
            are new tensors.
    """

    def make(function: Function) -> Function:
        name = _PREFIX + function.__name__
        _LIBRARY.define(name + schema)
        _LIBRARY.impl(name, function, "CompositeImplicitAutograd")
        operator = getattr(torch.ops.nextn, name).default
        COMPOSITES[operator] = function
        return cast(Function, operator)

    return make


def short_name(operator: torch._ops.OpOverload) -> str:
    """The name of an operator in a manifest's `ops`."""
    return operator._schema.name.partition("::")[2].removeprefix(_PREFIX)
