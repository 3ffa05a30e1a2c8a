"""Compiled artifacts: what the files are, and that the graphs replay their golden runs."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nextn.runtime.bindings.model import Model
from nextn.runtime.contract.manifest import parse_manifest
from nextn.runtime.selftest.golden_runs import selftest

Artifact = Callable[[str], Path]

NAMES = ["speculative", pytest.param("plain", marks=pytest.mark.full), "demo"]


@pytest.mark.parametrize("name", NAMES)
def test_graphs_replay_the_golden_runs(compiled_artifact: Artifact, name: str) -> None:
    with Model(compiled_artifact(name)) as model:
        checks = list(selftest(model))
    assert checks
    assert [check for check in checks if not check.passed] == []


def test_hashes_of_every_file(compiled_artifact: Artifact) -> None:
    artifact = compiled_artifact("speculative")
    path = artifact / "manifest.json"
    manifest = parse_manifest(path.read_text(), path)
    for record in (*manifest.graphs, manifest.golden):
        content = (artifact / record.file).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (record.bytes, record.sha256)
    weights = (artifact / manifest.weights.file).read_bytes()
    header, body = weights[: manifest.weights.header_bytes], weights[manifest.weights.header_bytes :]
    assert hashlib.sha256(header).hexdigest() == manifest.weights.header_sha256
    assert hashlib.sha256(body).hexdigest() == manifest.weights.body_sha256


def test_graphs_hold_no_weights_and_no_debug_tables(compiled_artifact: Artifact) -> None:
    libraries = list((compiled_artifact("speculative") / "graphs").iterdir())
    assert libraries
    for library in libraries:
        assert library.stat().st_size < 3_000_000
        sections = subprocess.run(["readelf", "-S", library], capture_output=True, text=True, check=True)
        assert ".debug_line" not in sections.stdout


def test_every_bound_tensor_is_in_the_graph_it_names(compiled_artifact: Artifact) -> None:
    """Inductor must not have baked a small buffer into a graph as a constant."""
    artifact = compiled_artifact("speculative")
    path = artifact / "manifest.json"
    for graph in parse_manifest(path.read_text(), path).graphs:
        library = (artifact / graph.file).read_bytes()
        for tensor in graph.tensors:
            owner = "model" if tensor.kind == "weight" else "state"
            assert f"{owner}.{tensor.name}".encode() in library, (graph.spec.key, tensor.name)
