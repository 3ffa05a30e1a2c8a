"""Graphs of a release at its real size as ONNX: structure alone, on a small machine, checked as any other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nextn.runtime.contract.graph_spec import GRAPH_NAMES
from tests.graphs.releases import flash_config

REPOSITORY = Path(__file__).parents[3]
PEAK_BYTES, LARGEST_FILE = 12 * 2**30, 64 * 2**20


@pytest.mark.full
def test_every_graph_of_flash(tmp_path: Path) -> None:
    config = flash_config()
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [
        sys.executable,
        "-m",
        "tests.compile.onnx.release_probe",
        str(tmp_path),
        "float32",
        *GRAPH_NAMES,
    ]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert finished.returncode == 0, finished.stderr[-2000:]
    found = {one["graph"]: one for one in map(json.loads, finished.stdout.splitlines())}
    print(*found.values(), sep="\n")
    assert list(found) == list(GRAPH_NAMES)
    assert max(one["peak_bytes"] for one in found.values()) < PEAK_BYTES
    assert max(one["bytes"] for one in found.values()) < LARGEST_FILE
    # Thousands of nodes a layer do not come from a graph that lost its layers.
    assert found["round"]["nodes"] > 300 * config["num_hidden_layers"]
    # A ring of every layer, and the rings and entries of those with a compressor, at the least.
    assert found["verify"]["outputs"] > 2 * config["num_hidden_layers"]
    assert found["round"]["weight_file_bytes"] > 10**12
    assert found["round"]["weight_bytes_on_disk"] < 2**24
