"""Merges equal calls of a functional graph: layers share angles, masks, row numbers and constants.

Nothing in such a graph has a side effect, so calls of one operator with the same arguments are one value.
"""

from __future__ import annotations

from typing import Any

from torch import fx


def merge_equal_calls(graph: fx.Graph) -> None:
    """Changes a functional graph in place; its values stay the same."""
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        key = (node.target, _hashable(node.args), _hashable(node.kwargs))
        earlier = first.setdefault(key, node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def _hashable(value: Any) -> Any:
    """Tells apart what compares equal but is another argument: 0, 0.0 and False."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((name, _hashable(one)) for name, one in sorted(value.items()))
    return type(value), value
