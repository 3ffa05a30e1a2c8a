"""A disk that takes no more ends a compile with one line and leaves no artifact."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compile.conftest import Outcome


@pytest.fixture(params=[600_000, 660_000], ids=["weights", "golden"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system too small for the weights, or for what comes after them."""
    yield from mounted(tmp_path, request.param)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds the artifact and little more."""
    yield from mounted(tmp_path, 2_000_000)


def mounted(tmp_path: Path, size: int) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
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


def test_disk_that_fills_while_graphs_compile(disk: Path, compile_to: Callable[..., Outcome]) -> None:
    """One short line that says so, although nothing in the log does."""
    failed = compile_to(disk / "artifact", "--jobs", "1", only="decode.b1", end="stuff")
    assert failed.code == 5
    last = failed.err.splitlines()[-1]
    assert last.startswith(
        "nextn-compile: error: compiling graph decode.b1 failed: no space left on the disk"
    )
    assert "0 bytes free" in last and len(last) < 400
    assert not (disk / "artifact").exists()
    assert compile_to(disk / "artifact").code == 0


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing past `size` bytes of any file fails; Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("missing", "size"), [("weights.safetensors", 100_000), ("golden.safetensors", 5_000), (None, 20_000)]
)
def test_a_failing_write(
    tmp_path: Path, compile_to: Callable[..., Outcome], missing: str | None, size: int
) -> None:
    """Of the weights, of the golden runs, and of the manifest: what came before is there already."""
    output = tmp_path / "artifact"
    assert compile_to(output, only="round.b1", end="crash").code == 5
    [partial] = tmp_path.glob(".artifact.partial-*")
    if missing is not None:
        (partial / missing).unlink()
    with largest_file(size):
        failed = compile_to(output)
    assert failed.code == 5
    last = failed.err.splitlines()[-1]
    assert last.startswith("nextn-compile: error: ") and "File too large" in last
    assert not output.exists()
    assert compile_to(output).code == 0
