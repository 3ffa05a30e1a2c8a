"""An artifact for a chip that captures few sizes: its sessions hold whole rounds, and what goes with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextn.compile.build import builder
from nextn.compile.cli import main
from nextn.runtime.bindings.model import Model
from nextn.runtime.contract.errors import ExitCode, UsageError
from tests.compile.in_process import run_in_process
from tests.fakes.cann.log import FakeCann
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint


@pytest.mark.full
def test_sessions_for_a_950_capture_rounds_alone(
    cann: FakeCann,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """k = 2 and three batch sizes: windows of 3, 6 and 12 rows, draft steps of 1, 2 and 4."""
    config = CASES["window_only"].config
    checkpoint = write_checkpoint(tmp_path / "checkpoint", config, random_weights(config, 7))
    artifact = tmp_path / "artifact"
    options = ("--device", "npu", "--soc", "Ascend950PR_9579", "--dtype", "float32", "--max-seq-len", "64")
    options += ("--prefill-chunk", "16", "--speculative-num-steps", "2", "--batch-sizes", "1,2,4")
    monkeypatch.setattr(builder, "run_workers", run_in_process)
    assert main([str(checkpoint), "-o", str(artifact), *options]) == ExitCode.OK
    assert "separate phases have 6 sizes, and an Ascend 950 captures 4" in capsys.readouterr().err
    before = cann.live().captured_graphs
    with Model(artifact) as model:
        sizes = (1, 2, 4)
        built = [
            ("prefill", 1),
            ("seed", 1),
            *((name, size) for size in sizes for name in ("decode", "round")),
        ]
        assert [(graph.name, graph.batch) for graph in model.manifest.graphs] == built
        with model.session():
            assert cann.live().captured_graphs - before == 2 + len(sizes), "prefill, seed, rounds"
        with model.session(speculation=False):
            assert cann.live().captured_graphs - before == 1 + len(sizes), "prefill, decoding"
        with pytest.raises(UsageError, match=r"no separate phases: .* \(found Ascend950PR_9579\)"):
            model.session(phases=True)
    assert cann.live().captured_graphs == before
