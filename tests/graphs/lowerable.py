"""The operations that every target can lower an exported graph from (docs/design.md, "The op layer")."""

from __future__ import annotations

import torch

FORBIDDEN = {
    *("cumprod", "softplus", "log1p", "amax", "sort", "argsort", "polar", "view_as_complex", "roll"),
    *("repeat_interleave", "nonzero", "masked_select", "unique", "unfold", "searchsorted"),
    *("index_copy", "index_add", "index_put", "scatter_reduce", "_local_scalar_dense", "item"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift"),
    *("__and__", "__or__", "__xor__", "__lshift__", "__rshift__"),
}
"""Aten operators, in place or not, that some lowering lacks or computes inexactly."""

FORBIDDEN_OVERLOADS = {"squeeze.dims"}

IN_PLACE_WRITE = "index_put_"
"""The one form of a forbidden operator that every lowering replaces by a form of its own."""

LOGICAL = {"__and__", "__or__", "bitwise_and", "bitwise_or", "bitwise_not"}
"""Allowed on booleans, where they are logical operations."""


def operator_calls(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes that call an operator; the rest of a graph's calls only take tuples apart."""
    calls = (node for node in graph.nodes if node.op == "call_function")
    return [node for node in calls if isinstance(node.target, torch._ops.OpOverload)]


def assert_lowers_everywhere(node: torch.fx.Node) -> None:
    operator = node.target
    namespace, _, name = operator._schema.name.partition("::")
    assert namespace == "aten", operator
    base = name if name.startswith("__") else name.rstrip("_")
    is_logical = base in LOGICAL and node.meta["val"].dtype == torch.bool
    assert base not in FORBIDDEN or is_logical or name == IN_PLACE_WRITE, operator
    assert f"{base}.{operator._overloadname}" not in FORBIDDEN_OVERLOADS, operator
