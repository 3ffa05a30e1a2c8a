"""Operators: functions of the op layer that an exported graph keeps whole, so that a target can replace them.

A function becomes `torch.ops.nextn.nextn_<name>`. Its own body, made of aten operations, is the plain
implementation: eager mode runs it, and a target that has nothing better decomposes the operator into it
(docs/design.md, "The op layer").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

_LIBRARY = torch.library.Library("nextn", "FRAGMENT")
_PREFIX = "nextn_"

Function = TypeVar("Function", bound=Callable[..., Any])

OPERATORS: dict[torch._ops.OpOverload, Callable[..., Any]] = {}
"""The plain implementation of every operator; complete once `nextn.graphs.ops` is imported."""

OPAQUE: set[torch._ops.OpOverload] = set()
"""The operators that AOTInductor calls as kernels of libnextn_ops instead of decomposing them."""


def operator(schema: str, *, opaque: Callable[..., Any] | None = None) -> Callable[[Function], Function]:
    """Makes an operator of a function of tensors and scalars, under the function's name.

    Args:
        schema: arguments and results as torch writes them, `(Tensor x, float eps) -> Tensor`; the results
            are new tensors.
        opaque: if given, torch does not look inside the operator, and only a target's table decomposes it;
            this function of the same arguments makes an empty result.
    """

    def make(function: Function) -> Function:
        name = _PREFIX + function.__name__
        _LIBRARY.define(name + schema, tags=torch.Tag.pt2_compliant_tag)
        overload = getattr(torch.ops.nextn, name).default
        if opaque is not None:
            _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
            torch.library.register_fake(f"nextn::{name}", opaque, lib=_LIBRARY)
            OPAQUE.add(overload)
        else:
            _LIBRARY.impl(name, function, "CompositeImplicitAutograd")
        OPERATORS[overload] = function
        return cast(Function, overload)

    return make


def short_name(overload: torch._ops.OpOverload) -> str:
    """The name of an operator in a manifest's `ops`."""
    return overload._schema.name.partition("::")[2].removeprefix(_PREFIX)
