"""One description of an operator for each library that calls it: what it computes, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Given = Mapping[str, Any]
"""The arguments of a call by name; a tensor that was not given is absent or None."""


@dataclass(frozen=True)
class Interface:
    """How a library calls an operator.

    `names` are those of arguments that the description calls otherwise; `convert` makes the described
    argument of one in another form; of other arguments the description knows the values in `fixed` only;
    `check` is False for a call that it does not know.
    """

    name: str
    names: Mapping[str, str] = field(default_factory=dict)
    convert: Mapping[str, Callable[[Any, Given], Any]] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    check: Callable[[Given], bool] = lambda given: True


@dataclass(frozen=True)
class Description:
    """`fixed` and `unused`, tensors that make no difference, are those of both interfaces."""

    compute: Callable[..., Any]
    torch: Interface
    ge: Interface
    fixed: Mapping[str, object]
    unused: tuple[str, ...]

    def call(self, interface: Interface, given: Given, tensors: Collection[str]) -> tuple[Tensor, ...]:
        """The results; AssertionError or KeyError for a call that is not described."""
        arguments, known = {}, set(self.unused)
        for name, parameter in inspect.signature(self.compute).parameters.items():
            known.add(own := interface.names.get(name, name))
            value = given.get(own) if "None" in str(parameter.annotation) else given[own]
            arguments[name] = interface.convert[name](value, given) if name in interface.convert else value
        assert known.issuperset(tensors), (interface.name, sorted(tensors))
        fixed = {**self.fixed, **interface.fixed}
        found = {name: given[name] for name in fixed}
        assert found == fixed and interface.check(given), (interface.name, found)
        results = self.compute(**arguments)
        return (results,) if isinstance(results, Tensor) else tuple(results)


DESCRIPTIONS: list[Description] = []


def described(
    torch: str | Interface, ge: str | Interface, unused: tuple[str, ...] = (), **fixed: object
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Describes the operator that a function computes, by the names of its parameters."""
    interfaces = [Interface(one) if isinstance(one, str) else one for one in (torch, ge)]

    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        DESCRIPTIONS.append(Description(compute, *interfaces, fixed, unused))
        return compute

    return register
