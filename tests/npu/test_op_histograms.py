"""How many operators of each type every graph has: a new conversion, transpose or copy shows here."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef

from tests.npu.sessions import Converted
from tests.npu.test_emit_air import compile_air

GOLDEN = Path(__file__).parent / "op_histograms.json"
"""Copied, after looking at the difference, from what a failing test writes to build/."""

FOUND = Path(__file__).parents[2] / "build" / "op_histograms.json"


def histogram(graph: Any) -> dict[str, int]:
    return dict(sorted(Counter(op.type for op in graph.op).items()))


def assert_golden(name: str, found: dict[str, dict[str, int]]) -> None:
    golden = json.loads(GOLDEN.read_text())
    if golden.get(name) != found:
        FOUND.write_text(json.dumps(golden | {name: found}, indent=1) + "\n")
    assert golden.get(name) == found, f"what was found is in {FOUND}"


def test_tiny(converted: Converted) -> None:
    programs = converted.programs.items()
    assert_golden("tiny", {f"{name}.b{batch}": histogram(p.graph) for (name, batch), p in programs})


@pytest.mark.full
def test_demo(tmp_path: Path) -> None:
    """Through the command, in bfloat16."""
    compile_air(["demo", "-o", str(tmp_path / "demo")])
    found = {}
    for file in sorted((tmp_path / "demo" / "graphs").iterdir()):
        model = ModelDef()
        model.ParseFromString(file.read_bytes())
        found[file.stem] = histogram(model.graph[0])
    assert_golden("demo", found)


def test_the_golden_file_is_sorted_text() -> None:
    text = GOLDEN.read_text()
    assert text == json.dumps(json.loads(text), indent=1) + "\n", sys.argv
