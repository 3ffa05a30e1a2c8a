"""How GE IR writes an edge: `operator:output`, output -1 for a control edge, nothing for an unfed input."""

from __future__ import annotations


def operator_of(source: str) -> str:
    """The name of the operator that an input comes from."""
    return source.rpartition(":")[0]


def is_control(source: str) -> bool:
    """Whether an input only orders, and carries no value."""
    return source.endswith(":-1")
