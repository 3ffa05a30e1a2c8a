"""Graphs that torch really compiled: bound by name over the raw C interface, state in place, no copies."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import HERE, REPOSITORY, Build, run_tool

# Two graphs beyond the budget of the default run, whose real artifacts bind the same way.
pytestmark = pytest.mark.full

PROMPT, NEW_TOKENS, RING_BYTES, WEIGHT_BYTES = [7, 99, 12345, 3, 16383, 8], 24, 32 << 20, 32 << 20


@pytest.fixture(scope="module")
def torch_library() -> str:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent / "lib/libtorch_cpu.so")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "artifact"
    path = os.pathsep.join(entry for entry in (str(REPOSITORY), *sys.path) if entry)
    environment = {**os.environ, "PYTHONPATH": path}
    run_tool(sys.executable, HERE / "toy_artifact.py", folder, env=environment, timeout=600)
    return folder


def generate(toy: Path, torch_library: str | None, **request: Any) -> list[tuple[str, dict[str, Any]]]:
    request = {"prompt": PROMPT, "max_new_tokens": NEW_TOKENS, **request}
    return [
        ("open", {"artifact": str(toy), "torch_library": torch_library, "verify_weights": True}),
        ("memory", {}),
        ("create", {}),
        ("submit", request),
        ("submit", request),
        ("run", {}),
        ("result", {"identifier": 1}),
        ("result", {"identifier": 2}),
        ("memory", {}),
        ("metrics", {}),
    ]


def test_tokens_and_memory(plain_build: Build, toy: Path, torch_library: str) -> None:
    opened, before, created, _, _, run, first, second, after, metrics = plain_build.host(
        *generate(toy, torch_library)
    )
    assert (opened["status"], created["status"], run["status"]) == (0, 0, 0), (opened, created, run)
    expected = json.loads((toy / "expected.json").read_text())
    assert first["tokens"] == expected
    assert second["tokens"] == expected, "the slot's second request sees nothing of the first"
    assert metrics["num_graph_launches"] == 2 * (3 + NEW_TOKENS - 1)
    assert after["weights_anonymous_kb"] == 0, "weights stay pages of the file"
    assert after["weights_mappings"] == 1
    grown = (after["anonymous_kb"] - before["anonymous_kb"]) << 10
    assert grown < WEIGHT_BYTES // 2, "neither the weights nor the ring were copied"


def test_libtorch_that_python_already_loaded(plain_build: Build, toy: Path) -> None:
    """An imported torch is loaded but not global; no second copy may be loaded."""
    outcomes = plain_build.host(("import_torch", {}), *generate(toy, None), ("memory", {}))
    assert outcomes[1]["status"] == 0, outcomes[1]
    assert outcomes[7]["tokens"] == json.loads((toy / "expected.json").read_text())
    assert outcomes[-1]["libtorch_files"] == 1


def test_state_is_what_graphs_wrote(plain_build: Build, toy: Path, torch_library: str) -> None:
    outcomes = plain_build.host(*generate(toy, torch_library), ("state", {"name": "control"}))
    row = outcomes[-1]["words"][:32]
    assert row[0] == len(PROMPT) + NEW_TOKENS - 1, "pos counts the rows run"
    assert row[2] == 0 and row[3] == 1
