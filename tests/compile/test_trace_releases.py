"""The whole round of each release traces at its real size, without weights, on a small machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.graphs.releases import flash_config, pro_config

SECONDS, PEAK_BYTES = 600, 12 * 2**30


@pytest.mark.full
@pytest.mark.parametrize("config", [flash_config(), pro_config()], ids=["flash", "pro"])
def test_the_round_of_a_release(tmp_path: Path, config: dict[str, object]) -> None:
    """Processor time, so that other work on the machine does not count."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "tests.compile.trace_probe", str(tmp_path), "round", "32768"]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert finished.returncode == 0, finished.stderr[-2000:]
    found = json.loads(finished.stdout)
    print(found)
    assert found["cpu_seconds"] < SECONDS and found["peak_bytes"] < PEAK_BYTES
    # Thousands of nodes a layer do not come from a graph that lost its layers.
    layers = config["num_hidden_layers"]
    assert isinstance(layers, int) and found["nodes"] > 300 * layers
    # fp32 experts alone: three matrices for each expert of each layer and of NextN.
    sizes = [config[key] for key in ("n_routed_experts", "hidden_size", "moe_intermediate_size")]
    experts, hidden, inner = (size for size in sizes if isinstance(size, int))
    assert found["weight_bytes"] > (layers + 1) * experts * 3 * 4 * hidden * inner
