"""How many operators of each type every graph of a model has, and the file of what was found right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("op_histograms.json")
"""Copied, after looking at the difference, from what a failing test writes to `FOUND`."""

FOUND = Path(__file__).parents[2] / "build" / "op_histograms.json"

Histogram = Mapping[str, int]


def histogram(graph: Any) -> Histogram:
    return dict(sorted(Counter(op.type for op in graph.op).items()))


def golden() -> dict[str, dict[str, Histogram]]:
    """Of every model, by graph."""
    return json.loads(GOLDEN.read_text())


def assert_golden(model: str, found: Mapping[str, Histogram]) -> None:
    expected = golden()
    if expected.get(model) != found:
        FOUND.write_text(as_text({**expected, model: found}))
    assert expected.get(model) == found, f"what was found is in {FOUND}"


def as_text(models: Mapping[str, Mapping[str, Histogram]]) -> str:
    """A line for a graph, so that a difference shows which graphs differ."""
    blocks = []
    for model, graphs in models.items():
        lines = [f'  "{graph}": {json.dumps(counts)}' for graph, counts in graphs.items()]
        blocks.append(f' "{model}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"
