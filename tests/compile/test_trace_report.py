"""`--trace-only`: graphs of any size are traced without memory for their tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nextn.compile.cli import main
from tests.oracles.synthetic import CASES

TERABYTE = 10**12

UNUSED_FREQUENCIES = 4 * 8
"""The rotary table of compressed layers, of which the case has none."""


def trace_only(
    capsys: pytest.CaptureFixture[str], folder: Path, config: dict[str, object]
) -> dict[str, object]:
    (folder / "config.json").write_text(json.dumps(config))
    command = ["--config-only", str(folder), "--speculative-num-steps", "1", "--trace-only", "--json"]
    assert main(command) == 0
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.full
def test_a_model_larger_than_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every graph is there; `round` binds all weights, and those without NextN just the Target's."""
    experts = {"n_routed_experts": 512, "moe_intermediate_size": 1 << 20}
    report = trace_only(capsys, tmp_path, CASES["window_only"].config | experts)
    traced = {graph["name"]: graph for graph in report["traced"]}  # type: ignore[attr-defined]
    assert list(traced) == [graph["name"] for graph in report["graphs"]]  # type: ignore[attr-defined]
    weights: int = report["weight_bytes"]  # type: ignore[assignment]
    assert traced["round"]["weight_bytes"] == weights - UNUSED_FREQUENCIES > TERABYTE
    plain = traced["decode"]["weight_bytes"]
    assert plain == traced["prefill"]["weight_bytes"] == traced["verify"]["weight_bytes"]
    assert traced["accept"]["weight_bytes"] == 0
    # One of the three layers is NextN's; the rest of the two graphs' weights is thousands of times smaller.
    assert traced["draft_extend"]["weight_bytes"] == pytest.approx(plain / 2, rel=1e-3)
    assert all(graph["nodes"] > 0 for graph in traced.values())
    assert traced["round"]["nodes"] > traced["verify"]["nodes"] + traced["draft_extend"]["nodes"] // 2
    assert report["trace_peak_bytes"] < 8 * 10**9  # type: ignore[operator]
