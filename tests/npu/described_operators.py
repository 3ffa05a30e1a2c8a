"""torch_npu's fused operators on a CPU, by their descriptions: fused ops run without an NPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from nextn.compile.targets.ascend.custom_ops import declare_custom_ops
from tests.oracles import ascend_attention, ascend_operators  # noqa: F401
from tests.oracles.described import DESCRIPTIONS, Description


def _implementation(description: Description) -> Callable[..., Any]:
    library, _, name = description.torch.name.partition("::")
    schema = getattr(getattr(torch.ops, library), name).default._schema
    defaults = {one.name: one.default_value for one in schema.arguments}
    holds_tensors = {one.name for one in schema.arguments if "Tensor" in str(one.type)}

    def run(*positional: Any, **named: Any) -> Any:
        given = {**defaults, **dict(zip(defaults, positional, strict=False)), **named}
        tensors = [one for one in holds_tensors if given[one] is not None]
        results = list(description.call(description.torch, given, tensors))
        # Results that no form reads are left empty.
        results += [torch.empty(0) for _ in schema.returns[len(results) :]]
        if str(schema.returns[0].type) == "List[Tensor]":
            return results
        return tuple(results) if len(results) > 1 else results[0]

    return run


@functools.cache
def run_on_cpu() -> None:
    """Gives the operators a CPU implementation, for the rest of the process."""
    import torch_npu  # noqa: F401

    declare_custom_ops()
    for description in DESCRIPTIONS:
        torch.library.impl(description.torch.name, "CPU", _implementation(description))
