"""Attributes and constants of GE operators as Python values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.oracles.ge_dtypes import PROTO_DTYPES


def attribute(operator: Any, name: str) -> Any:
    """The value of a scalar attribute; KeyError if the operator has none of that name."""
    if name not in operator.attr:
        raise KeyError(f"{operator.name} ({operator.type}) has no attribute {name}")
    value = operator.attr[name]
    return getattr(value, value.WhichOneof("value"))


def integers(operator: Any, name: str) -> list[int]:
    """The value of an attribute that is a list of integers."""
    return list(attribute(operator, name).i)


def constant(operator: Any) -> Tensor:
    """The value of a `Const`."""
    value = operator.attr["value"].t
    dtype = PROTO_DTYPES[value.desc.dtype]
    shape = list(value.desc.shape.dim)
    if not value.data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(value.data), dtype=dtype).reshape(shape).clone()


def values(tensor: Tensor) -> list[int]:
    """An operand that GE takes as a tensor and that means a list of integers."""
    assert not tensor.is_floating_point(), "a list of integers is given as floats"
    return [int(value) for value in tensor.reshape(-1)]


def value(tensor: Tensor) -> int:
    (only,) = values(tensor)
    return only
