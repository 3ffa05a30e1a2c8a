"""Graphs that contradict their manifest or fail: the session says so and leaves nothing behind."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.artifact_builder import read_json, write_json

from .conftest import Build, Outcome

OK, ARTIFACT, RUNTIME = 0, 4, 5
ABORT = 3


@pytest.fixture
def copy(artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(artifact, tmp_path / "artifact"))


GRAPH_FAULTS: list[tuple[str, int, str]] = [
    ("prefill:create", RUNTIME, "injected create fault"),
    ("round:inputs", ARTIFACT, "expected 0 inputs, 0 outputs, found 1 inputs"),
    ("seed:dtype", ARTIFACT, "key control, expected int64 of 1280 bytes, found another dtype"),
    ("round:bytes", ARTIFACT, "found the same dtype of 1344 bytes"),
    ("prefill:folded", ARTIFACT, "graph does not read a required buffer"),
    ("round:unknown", ARTIFACT, "key model.unheard_of"),
]


@pytest.mark.parametrize(("fault", "status", "text"), GRAPH_FAULTS)
def test_graph_that_contradicts_its_manifest(
    build: Build, artifact: Path, fake_torch: str, fault: str, status: int, text: str
) -> None:
    outcomes = build.host(
        ("open", {"artifact": str(artifact), "torch_library": fake_torch}),
        ("create", {}),
        ("live_tensors", {}),
        FAKE_FAULT=fault,
    )
    assert outcomes[1]["status"] == status and text in outcomes[1]["error"]
    assert outcomes[2]["count"] == 0


def test_graph_that_is_no_graph(build: Build, copy: Path, fake_torch: str) -> None:
    for content, status, text in (
        (b"not a library", RUNTIME, "cannot load graph"),
        (Path(fake_torch).read_bytes(), ARTIFACT, "not a compiled graph"),
    ):
        manifest = read_json(copy)
        entry = next(graph for graph in manifest["graphs"] if graph["name"] == "seed")
        (copy / entry["file"]).unlink()
        (copy / entry["file"]).write_bytes(content)
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        write_json(copy, manifest)
        outcomes = build.host(
            ("open", {"artifact": str(copy), "torch_library": fake_torch}),
            ("create", {}),
            ("create", {"speculation": False}),
        )
        assert outcomes[0]["status"] == OK
        assert outcomes[1]["status"] == status and text in outcomes[1]["error"]
        assert outcomes[2]["status"] == OK, "a graph that a session does not need is not loaded"


def test_missing_graph(build: Build, copy: Path, fake_torch: str) -> None:
    manifest = read_json(copy)
    manifest["graphs"] = [graph for graph in manifest["graphs"] if graph["name"] != "draft_step"]
    write_json(copy, manifest)
    outcomes = build.host(
        ("open", {"artifact": str(copy), "torch_library": fake_torch}),
        ("create", {"phases": True}),
        ("create", {}),
    )
    assert outcomes[1]["status"] == ARTIFACT and "expected draft_step.b1" in outcomes[1]["error"]
    assert outcomes[2]["status"] == OK


RUN_FAULTS: list[tuple[str, str]] = [
    ("round:run", "injected run fault"),
    ("prefill:run", "injected run fault"),
    ("seed:throw", "injected exception"),
    ("round:count", "out_count 99"),
    ("round:token", "impossible token (found -5)"),
    ("round:idle", "out_count 0"),
]


@pytest.mark.parametrize(("fault", "text"), RUN_FAULTS)
def test_graph_that_fails_while_running(
    build: Build, artifact: Path, fake_torch: str, fault: str, text: str
) -> None:
    """The run fails with the graph's words, every request ends, and the session refuses to go on."""
    requests: list[Outcome] = [{"prompt": [i], "max_new_tokens": 9, "ignore_eos": True} for i in range(6)]
    outcomes = build.host(
        ("open", {"artifact": str(artifact), "torch_library": fake_torch}),
        ("create", {}),
        *[("submit", request) for request in requests],
        ("run", {}),
        ("run", {}),
        *[("result", {"identifier": i + 1}) for i in range(6)],
        ("fake_threads", {}),
        FAKE_FAULT=fault,
    )
    first, second, *results, threads = outcomes[8:]
    assert first["status"] == RUNTIME and text in first["error"]
    assert second["status"] == RUNTIME and second["error"] == first["error"]
    assert [result["finish_reason"] for result in results] == [ABORT] * 6
    assert threads["count"] == 7, "the caller's thread count comes back"


def test_objects_may_be_freed_in_any_order(build: Build, artifact: Path, fake_torch: str) -> None:
    outcomes = build.host(
        ("open", {"artifact": str(artifact), "torch_library": fake_torch}),
        ("create", {}),
        ("create", {"phases": True}),
        ("close", {}),
        ("submit", {"prompt": [1], "max_new_tokens": 9}),
        ("submit", {"prompt": [1], "max_new_tokens": 9, "on": 1}),
        ("run", {}),
        ("destroy", {}),
        ("run", {"on": 1}),
        ("result", {"identifier": 1, "on": 1}),
        ("destroy", {"on": 1}),
        ("live_tensors", {}),
    )
    assert outcomes[6]["status"] == OK and outcomes[9]["tokens"]
    assert outcomes[-1]["count"] == 0
