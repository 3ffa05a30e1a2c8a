"""Building and re-building with a stand-in for the compiler: nothing half-made, nothing made twice."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nextn.compile.build.progress import Meter
from nextn.runtime.contract.manifest import Manifest, parse_manifest
from tests.compile.conftest import Outcome
from tests.oracles import published_layouts as layouts
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

Run = Callable[..., Outcome]
Start = Callable[..., subprocess.Popen[str]]


def manifest_of(artifact: Path) -> Manifest:
    path = artifact / "manifest.json"
    return parse_manifest(path.read_text(), path)


def partial_folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if ".partial-" in path.name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one finished artifact is kept for the tests that start from one."""
    return tmp_path_factory.mktemp("finished") / "artifact"


@pytest.fixture
def artifact(finished: Path, compile_to: Run, tmp_path: Path) -> Path:
    """A private copy of a finished artifact."""
    if not finished.exists():
        assert compile_to(finished).code == 0
    return Path(shutil.copytree(finished, tmp_path / "artifact"))


def test_a_finished_artifact_holds_its_files_and_nothing_else(artifact: Path) -> None:
    manifest = manifest_of(artifact)
    listed = {"manifest.json", manifest.weights.file, manifest.golden.file}
    listed |= {graph.file for graph in manifest.graphs}
    found = {path.relative_to(artifact).as_posix() for path in artifact.rglob("*") if path.is_file()}
    assert found == listed
    assert [graph.spec.key for graph in manifest.graphs] == [
        "prefill.b1",
        "seed.b1",
        "decode.b1",
        "verify.b1",
        "accept.b1",
        "draft_extend.b1",
        "draft_step.b1",
        "round.b1",
    ]


def test_the_manifest_agrees_with_the_weights_file(artifact: Path) -> None:
    manifest = manifest_of(artifact)
    content = (artifact / manifest.weights.file).read_bytes()
    assert len(content) == manifest.weights.bytes
    assert manifest.weights.header_bytes == 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : manifest.weights.header_bytes])
    for weight in manifest.weights.tensors:
        begin, end = header[weight.name]["data_offsets"]
        assert weight.offset == manifest.weights.header_bytes + begin
        assert weight.nbytes == end - begin


def test_the_same_compile_again_is_up_to_date(artifact: Path, compile_to: Run) -> None:
    before = (artifact / "manifest.json").read_bytes()
    for options in ((), ("--force",)):
        again = compile_to(artifact, "--json", *options)
        assert again.code == 0, again.err
        summary = json.loads(again.out)
        assert summary["up_to_date"] and summary["graphs_compiled"] == 0
    assert (artifact / "manifest.json").read_bytes() == before


def test_other_options_are_refused_without_force(artifact: Path, compile_to: Run) -> None:
    before = (artifact / "manifest.json").read_bytes()
    refused = compile_to(artifact, "--speculative-num-steps", "0")
    assert refused.code == 2
    assert "other inputs or options" in refused.err and "--force" in refused.err
    assert (artifact / "manifest.json").read_bytes() == before
    assert compile_to(artifact, "--speculative-num-steps", "0", "--force").code == 0
    assert len(manifest_of(artifact).graphs) == 2
    assert [path.name for path in artifact.parent.iterdir()] == ["artifact"]


def test_a_changed_weight_is_noticed(
    artifact: Path, compile_to: Run, checkpoint: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    with open(other / "model.safetensors", "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    assert compile_to(artifact, source=other).code == 2


@pytest.mark.parametrize("file", ["graphs/round.b1.so", "weights.safetensors", "manifest.json"])
def test_a_damaged_artifact_is_replaced_only_by_force(artifact: Path, compile_to: Run, file: str) -> None:
    with open(artifact / file, "r+b") as damaged:
        damaged.seek(-1, 2)
        damaged.write(b"?")
    refused = compile_to(artifact)
    assert refused.code == 2 and "damaged" in refused.err
    assert compile_to(artifact, "--force").code == 0


def test_an_empty_folder_is_filled(tmp_path: Path, compile_to: Run) -> None:
    (tmp_path / "empty").mkdir()
    assert compile_to(tmp_path / "empty", "--speculative-num-steps", "0").code == 0
    assert manifest_of(tmp_path / "empty").speculation.num_steps == 0


@pytest.mark.parametrize("extra", ["notes.txt", "graphs"])
def test_a_folder_that_is_no_artifact_is_never_replaced(tmp_path: Path, compile_to: Run, extra: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / extra).write_text("keep me")
    refused = compile_to(tmp_path / "mine", "--force")
    assert refused.code == 2 and "not an artifact" in refused.err
    assert (tmp_path / "mine" / extra).read_text() == "keep me"


def test_an_artifact_with_a_foreign_file_is_never_replaced(artifact: Path, compile_to: Run) -> None:
    (artifact / "notes.txt").write_text("keep me")
    refused = compile_to(artifact, "--force")
    assert refused.code == 2 and "notes.txt" in refused.err
    assert (artifact / "notes.txt").exists()


def test_an_output_below_a_file_is_refused(tmp_path: Path, compile_to: Run) -> None:
    (tmp_path / "file").write_text("keep me")
    refused = compile_to(tmp_path / "file" / "sub" / "artifact")
    assert refused.code == 2
    assert refused.err.splitlines()[-1].endswith(
        f"the output is below something that is not a folder (file {tmp_path / 'file' / 'sub' / 'artifact'}, "
        f"expected a folder, found {tmp_path / 'file'})"
    )
    assert (tmp_path / "file").read_text() == "keep me"


def test_a_file_of_that_name_is_refused(tmp_path: Path, compile_to: Run) -> None:
    (tmp_path / "file").write_text("keep me")
    refused = compile_to(tmp_path / "file", "--force")
    assert refused.code == 2
    assert (tmp_path / "file").read_text() == "keep me"


def test_a_killed_compile_leaves_no_artifact_and_is_continued(
    tmp_path: Path, start_compile: Start, compile_to: Run
) -> None:
    output = tmp_path / "artifact"
    process = start_compile(output, "--jobs", "1", only="draft_step.b1", sleep=600)
    assert process.stderr is not None
    for line in process.stderr:
        if "draft_extend.b1 compiled" in line:
            break
    process.kill()
    process.wait()
    assert not output.exists()
    [partial] = partial_folders(tmp_path)
    assert not (partial / "manifest.json").exists()

    # A library that rotted in the meantime is compiled again.
    (partial / "graphs" / "seed.b1.so").write_bytes(b"rotten")
    again = compile_to(output, "--json")
    assert again.code == 0, again.err
    summary = json.loads(again.out)
    assert (summary["graphs_reused"], summary["graphs_compiled"]) == (5, 3)
    assert (output / "graphs" / "seed.b1.so").read_text() == "library of seed.b1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["artifact"]


def test_a_killed_compile_takes_its_workers_along(tmp_path: Path, start_compile: Start) -> None:
    process = start_compile(tmp_path / "artifact", "--jobs", "1", only="prefill.b1", sleep=600)
    worker = wait_for_child(process.pid)
    process.kill()
    process.wait()
    wait_for_end(worker)


def test_an_interrupt_says_how_to_continue(tmp_path: Path, start_compile: Start) -> None:
    process = start_compile(tmp_path / "artifact", "--jobs", "1", only="prefill.b1", sleep=600)
    worker = wait_for_child(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command again" in err
    wait_for_end(worker)
    assert not (tmp_path / "artifact").exists()


def test_a_long_packing_is_reported(tmp_path: Path, compile_to: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextn.compile.build.progress.LINE_SECONDS", 0.0)
    monkeypatch.setattr("nextn.compile.build.progress._REFRESH_SECONDS", 0.0)
    lines = compile_to(tmp_path / "artifact").err.splitlines()
    packing = [line for line in lines if line.startswith("packing weights: ")]
    size = packing[-1].split()[5]
    assert len(packing) > 50 and packing[-1].startswith(f"packing weights: {size} kB of {size} kB, ")
    assert packing[0].split(", ")[-1] == "embed.weight"
    assert "B/s, " in packing[-1] and " left, " in packing[-1]


def test_an_interrupted_packing_continues(
    artifact: Path, tmp_path: Path, compile_to: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run finds what was packed, and ends in the same weights."""

    def interrupt(meter: Meter, name: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    output = tmp_path / "again"
    with monkeypatch.context() as patch:
        patch.setattr(Meter, "__call__", interrupt)
        assert compile_to(output).code == 130
    (partial,) = [folder for folder in partial_folders(tmp_path) if ".again." in folder.name]
    assert (partial / "weights.safetensors.partial").exists()
    assert compile_to(output).code == 0
    assert manifest_of(output).weights == manifest_of(artifact).weights
    assert not any(path.name.startswith(".") for path in output.iterdir())


def test_a_quantised_draft_from_another_folder(tmp_path: Path, compile_to: Run) -> None:
    """A plain Target with the release's draft: both folders are recorded, and compared on the next run."""
    config = CASES["window_only"].config
    weights = random_weights(config, seed=3)
    target = {name: weight for name, weight in weights.items() if not name.startswith("mtp.")}
    plain = write_checkpoint(tmp_path / "plain", config, target)
    release = layouts.write_sharded(tmp_path / "release", config, layouts.release(weights)[0])
    output, option = tmp_path / "artifact", "--speculative-draft-model-path"
    assert compile_to(output, option, str(release), source=plain).code == 0
    sources = {
        (file, tensor) for weight in manifest_of(output).weights.tensors for file, tensor, _ in weight.source
    }
    draft_shard = "draft/model-00003-of-00003.safetensors"
    assert ("model.safetensors", "embed.weight") in sources
    assert {(draft_shard, "mtp.0.e_proj.weight"), (draft_shard, "mtp.0.e_proj.scale")} <= sources
    assert "up to date" in compile_to(output, option, str(release), source=plain).out


def test_leftovers_of_other_options_are_removed(tmp_path: Path, compile_to: Run) -> None:
    output = tmp_path / "artifact"
    assert compile_to(output, end="crash").code == 5
    assert len(partial_folders(tmp_path)) == 1
    assert compile_to(output, "--speculative-num-steps", "0").code == 0
    assert partial_folders(tmp_path) == []


def test_two_compiles_of_one_artifact_do_not_mix(
    tmp_path: Path, start_compile: Start, compile_to: Run
) -> None:
    output = tmp_path / "artifact"
    first = start_compile(output, "--jobs", "1", only="prefill.b1", sleep=600)
    wait_for_child(first.pid)
    second = compile_to(output)
    first.kill()
    first.wait()
    assert second.code == 5
    assert "another nextn-compile" in second.err


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("crash", "killed by SIGSEGV; its log ends: about to compile verify.b1"),
        ("fill", "failed: no space left on the disk of the artifact (file "),
        ("raise", "failed: exit 1: ValueError: of the last line; its log is kept (file "),
        ("mute", "exit 0; its log ends: about to compile verify.b1"),
    ],
)
def test_a_failed_worker_is_one_line_with_the_graph(
    tmp_path: Path, compile_to: Run, end: str, expected: str
) -> None:
    failed = compile_to(tmp_path / "artifact", only="verify.b1", end=end)
    assert failed.code == 5
    last = failed.err.splitlines()[-1]
    assert last.startswith("nextn-compile: error: compiling graph verify.b1 failed")
    assert expected in last
    assert "Traceback" not in last
    assert not (tmp_path / "artifact").exists()


def wait_for_child(pid: int) -> int:
    """The first worker a compile starts."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        for child in map(int, children.read_text().split()):
            if b"job.json" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        time.sleep(0.05)
    raise AssertionError("no worker started")


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, "the worker outlived its compile"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
