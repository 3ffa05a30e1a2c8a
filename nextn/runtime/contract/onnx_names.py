"""How an ONNX graph names state, and what its metadata tells an executor."""

from __future__ import annotations

WRITTEN = "nextn.written"
"""Metadata: the state, separated by commas, that has a present."""

IN_PLACE = "nextn.in_place"
"""Metadata: the state, separated by commas, whose present may take the memory of its past."""


def past(state: str) -> str:
    """The input that holds a state tensor before a launch."""
    return f"past.{state}"


def present(state: str) -> str:
    """The output that holds it afterwards; what a graph does not write has none."""
    return f"present.{state}"
