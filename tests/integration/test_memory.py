"""One copy of the weights, however many graphs and sessions read them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nextn.compile.cli import main as nextn_compile
from nextn.runtime.contract.errors import ExitCode
from tests.conftest import REPOSITORY
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

LARGE = {
    "vocab_size": 65536,
    "hidden_size": 512,
    "n_routed_experts": 16,
    "moe_intermediate_size": 1024,
    "compress_ratios": [0, 4, 0],
    "num_hidden_layers": 2,
    "num_hash_layers": 1,
}


def probe(artifact: Path) -> dict[str, int]:
    command = [sys.executable, str(Path(__file__).with_name("memory_probe.py")), str(artifact)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report: dict[str, int] = json.loads(done.stdout)
    return report


def check(report: dict[str, int]) -> None:
    assert report["weights_mappings"] == 1
    assert report["weights_anonymous"] == 0
    assert report["anonymous"] - report["state"] < 64 * 1024


def test_small_artifact(speculative: Path) -> None:
    check(probe(speculative))


@pytest.mark.full
def test_half_a_gigabyte(tmp_path: Path) -> None:
    """All graphs of two batch sizes, in three sessions; every weight page comes from the file."""
    config = {**CASES["tiny"].config, **LARGE}
    write_checkpoint(tmp_path / "checkpoint", config, random_weights(config, seed=3))
    artifact = REPOSITORY / "build" / "test-artifacts" / "large"
    flags = ("--batch-sizes", "1,2", "--max-seq-len", "256", "--prefill-chunk", "16", "--force")
    assert nextn_compile([str(tmp_path / "checkpoint"), "-o", str(artifact), *flags]) == ExitCode.OK
    report = probe(artifact)
    assert report["weights_bytes"] >= 512 * 1024
    assert report["weights_resident"] > report["weights_bytes"] // 3
    check(report)
