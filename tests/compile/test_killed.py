"""A compile killed between two steps of keeping a file: what was finished is not made again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nextn.compile.build.artifact_files import PartialArtifact
from nextn.runtime.contract.manifest import parse_manifest
from nextn.weights.aligned_file import take_back
from nextn.weights.stored_tensors import StoredTensor
from tests.compile.conftest import SMALL, Outcome

Run = Callable[..., Outcome]

OPTIONS = (*SMALL, "--speculative-num-steps", "0", "--jobs", "1")
WEIGHTS = "weights.safetensors"
GOLDEN = "golden.safetensors"
PACKED, RECORDED = "weights packed", "golden runs recorded"


def killed(checkpoint: Path, output: Path, when: str, file: str, *more: str) -> Path:
    """The partial folder that a kill before or after `file` gets its name leaves."""
    script = str(Path(__file__).with_name("killed_compile.py"))
    arguments = [when, file, str(checkpoint), "-o", str(output), *OPTIONS, *more]
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not output.exists()
    [partial] = output.parent.glob(f".{output.name}.partial-*")
    return partial


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stored tensors that were read."""
    names: list[str] = []
    real = StoredTensor.read

    def read(self: StoredTensor, piece_bytes: int):  # type: ignore[no-untyped-def]
        names.append(self.name)
        return real(self, piece_bytes)

    monkeypatch.setattr(StoredTensor, "read", read)
    return names


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed") / "artifact"


@pytest.mark.parametrize(
    ("when", "file", "made_again"),
    [
        pytest.param("before", WEIGHTS, {PACKED, RECORDED}, marks=pytest.mark.full),
        ("after", WEIGHTS, {PACKED, RECORDED}),
        pytest.param("after", f"{WEIGHTS}.json", {RECORDED}, marks=pytest.mark.full),
        pytest.param("after", f"{GOLDEN}.json", set(), marks=pytest.mark.full),
        ("after", "graphs.decode.b1.so.json", set()),
    ],
)
def test_nothing_finished_is_lost(
    tmp_path: Path,
    checkpoint: Path,
    compile_to: Run,
    undisturbed: Path,
    reads: list[str],
    when: str,
    file: str,
    made_again: set[str],
) -> None:
    """Packed weights are found by their journal where they have no record yet: no source is read again."""
    if not undisturbed.exists():
        assert compile_to(undisturbed, *OPTIONS).code == 0
    killed(checkpoint, tmp_path / "artifact", when, file)
    reads.clear()
    again = compile_to(tmp_path / "artifact", *OPTIONS)
    assert again.code == 0, again.err
    # The routing tables are looked at before anything is built.
    assert {name for name in reads if "tid2eid" not in name} == set()
    assert {step for step in (PACKED, RECORDED) if step in again.err} == made_again
    assert ("2 of 2 graphs kept" in again.err) == file.startswith("graphs.")
    for name in (WEIGHTS, GOLDEN):
        assert (tmp_path / "artifact" / name).read_bytes() == (undisturbed / name).read_bytes()
    assert not [path.name for path in (tmp_path / "artifact").iterdir() if path.name.startswith(".")]
    recorded, expected = (
        parse_manifest((folder / "manifest.json").read_text(), folder).weights
        for folder in (tmp_path / "artifact", undisturbed)
    )
    assert recorded == expected


@pytest.mark.full
@pytest.mark.parametrize("file", [WEIGHTS, "graphs.decode.b1.onnx.json"])
def test_weights_beside_the_graphs(
    tmp_path: Path, checkpoint: Path, compile_to: Run, reads: list[str], file: str
) -> None:
    """ONNX has them in the graphs' folder, where an attempt and its journal lie too."""
    onnx = ("--emit", "onnx")
    killed(checkpoint, tmp_path / "artifact", "after", file, *onnx)
    reads.clear()
    again = compile_to(tmp_path / "artifact", *OPTIONS, *onnx)
    assert again.code == 0, again.err
    assert {name for name in reads if "tid2eid" not in name} == set()
    graphs = {path.name for path in (tmp_path / "artifact" / "graphs").iterdir()}
    assert graphs == {WEIGHTS, "prefill.b1.onnx", "decode.b1.onnx"}
    manifest = parse_manifest((tmp_path / "artifact" / "manifest.json").read_text(), "manifest.json")
    assert manifest.weights.file == f"graphs/{WEIGHTS}"


@pytest.mark.parametrize(
    "journal", [True, pytest.param(False, marks=pytest.mark.full)], ids=["with its journal", "without"]
)
def test_a_file_without_a_record_counts_as_space(
    tmp_path: Path, checkpoint: Path, compile_to: Run, monkeypatch: pytest.MonkeyPatch, journal: bool
) -> None:
    """A disk that holds the weights once holds them after a kill too."""
    partial = killed(checkpoint, tmp_path / "artifact", "after", WEIGHTS)
    if not journal:
        (partial / f"{WEIGHTS}.partial.journal").unlink()
    file = partial / WEIGHTS
    missing = file.stat().st_size - file.stat().st_blocks * 512
    usage = type("Usage", (), {"free": max(missing, 0) + 4096})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    assert compile_to(tmp_path / "artifact", *OPTIONS).code == 0


def test_a_move_that_a_kill_cut_short_is_checked(tmp_path: Path) -> None:
    """What lies at the recorded place need not be what was recorded."""
    with PartialArtifact(tmp_path / "artifact", "identity") as partial:
        source = partial.scratch() / "library"
        source.write_bytes(b"sound")
        partial.keep(source, "graphs/library", "inputs", {"of": "library"})
        assert partial.adopt("graphs/library", "inputs") == {"of": "library"}
        (partial.folder / "graphs" / "library").unlink()
        folder = partial.folder
    source.parent.mkdir(parents=True)
    source.write_bytes(b"rotten")
    with PartialArtifact(tmp_path / "artifact", "identity") as partial:
        assert partial.adopt("graphs/library", "inputs") is None
    assert os.listdir(folder / "graphs") == ["library"]


def test_a_file_beside_a_newer_attempt_goes(tmp_path: Path) -> None:
    """The attempt is what a journal speaks of."""
    finished, attempt = tmp_path / WEIGHTS, tmp_path / f"{WEIGHTS}.partial"
    take_back(finished)
    assert list(tmp_path.iterdir()) == []
    finished.write_bytes(b"of other weights")
    attempt.write_bytes(b"newer")
    take_back(finished)
    assert [path.name for path in tmp_path.iterdir()] == [attempt.name]
    assert attempt.read_bytes() == b"newer"
