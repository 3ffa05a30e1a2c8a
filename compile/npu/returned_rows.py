"""What an `.air` or `.om` graph returns: a graph engine keeps nothing that leads to no output."""

from __future__ import annotations

from nextn.runtime.contract.blocks import Control, Result
from nextn.runtime.contract.graph_spec import GraphSpec

RETURNED_BLOCKS = ("result", "control")
"""The block whose rows a graph returns: the first of these that it writes."""

_WORD = 8


def returned_bytes(graph: GraphSpec) -> tuple[int, int]:
    """Sizes that the rows of a graph's slots have in either block."""
    result, control = (graph.batch * block.WIDTH * _WORD for block in (Result, Control))
    return result, control
