"""A full disk ends a compile with one line and leaves no artifact."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compile.conftest import Outcome


@pytest.fixture(params=[600_000, 660_000], ids=["weights", "golden"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system too small for the weights, or for what comes after them."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(small_disk: Path, compile_to: Callable[..., Outcome]) -> None:
    failed = compile_to(small_disk / "artifact")
    assert failed.code == 5
    assert failed.err.splitlines()[-1].startswith("nextn-compile: error: ")
    assert "space" in failed.err.splitlines()[-1]
    assert not (small_disk / "artifact").exists()
