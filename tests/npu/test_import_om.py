"""`nextn-compile --import-om`, with an `atc` that copies: to the fake an .air file is an offline model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef

import nextn
from nextn.compile.cli import main as nextn_compile
from nextn.compile.targets.air import om_interface
from nextn.compile.targets.air.target import build_om_script
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.bindings.model import Model
from nextn.runtime.cli import main as nextn_run
from nextn.runtime.contract.blocks import Control, Result
from nextn.runtime.contract.errors import ArtifactError, ExitCode
from nextn.runtime.contract.manifest import Manifest, parse_manifest
from nextn.weights import Checkpoint
from tests.artifact_builder import write_uncompiled
from tests.fakes.cann.log import FakeCann, ModelRun
from tests.integration.conftest import Ask, eager_session, run_in
from tests.npu.offline_models import block_of, model_def
from tests.npu.sessions import Converted
from tests.npu.test_emit_air import compile_air
from tests.oracles.ge_evaluator import evaluate
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

pytestmark = pytest.mark.usefixtures("cann")

SOC = "Ascend910B1"
KEYS = ("prefill.b1", "decode.b1", "decode.b2")

ATC = """#!/bin/sh
for argument; do case $argument in
--model=*) model=${argument#--model=};;
--output=*) output=${argument#--output=};;
--soc_version=Wrong*) echo "E10001: soc_version is invalid"; exit 1;;
esac; done
cp "$model" "$output.om"
echo {} > fusion_result.json
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = CASES["tiny"].config
    return write_checkpoint(tmp_path_factory.mktemp("import") / "tiny", config, random_weights(config, 7))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """An artifact of .air graphs that nothing was imported into, and an `om` folder beside it."""
    opened = Checkpoint.open(checkpoint)
    shape = SessionShape(opened.config, num_steps=0, batch_sizes=(1, 2), max_seq_len=64, prefill_chunk=16)
    folder = tmp_path_factory.mktemp("pristine")
    write_uncompiled(
        folder / "art", opened, shape, device="npu", emit="air", content=model_def, returns=block_of
    )
    (folder / "om").mkdir()
    for key in KEYS:
        shutil.copyfile(folder / f"art/graphs/{key}.air", folder / f"om/{key}.om")
    (folder / "om" / "soc.txt").write_text(SOC + "\n")
    (folder / "om" / "fusion_result.json").write_text("{}")
    return folder


@pytest.fixture
def folders(pristine: Path, tmp_path: Path) -> tuple[Path, Path]:
    """(DIR, ART), to change."""
    copy = Path(shutil.copytree(pristine, tmp_path / "copy"))
    return copy / "om", copy / "art"


def manifest_of(artifact: Path) -> Manifest:
    return parse_manifest((artifact / "manifest.json").read_text(), artifact / "manifest.json")


def run_import(folder: Path, artifact: Path, *more: str) -> int:
    return nextn_compile(["--import-om", str(folder), "-o", str(artifact), *more])


def test_the_manifest_is_closed_with_the_files(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, artifact = folders
    before = manifest_of(artifact)
    assert run_import(folder, artifact) == ExitCode.OK
    out, err = capsys.readouterr()
    assert out.startswith(f"{artifact}: 3 graphs for {SOC} imported") and err == ""
    after = manifest_of(artifact)
    assert (after.target.emit, after.target.soc) == ("om", SOC)
    assert [graph.file for graph in after.graphs] == [f"graphs/{key}.om" for key in KEYS]
    assert [graph.tensors for graph in after.graphs] == [graph.tensors for graph in before.graphs]
    with Model(artifact):
        pass  # every hash and size was checked

    assert run_import(folder, artifact) == ExitCode.OK
    assert capsys.readouterr().out == f"{artifact} is up to date\n"
    assert manifest_of(artifact) == after
    assert not list(artifact.rglob("*.part"))


def test_as_json(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder, artifact = folders
    assert run_import(folder, artifact, "--json") == ExitCode.OK
    summary = json.loads(capsys.readouterr().out)
    assert (summary["graphs"], summary["soc"], summary["unchecked"]) == (3, SOC, None)


def test_files_for_another_chip_replace_these(folders: tuple[Path, Path]) -> None:
    """Also after an import that was killed before it came to the manifest."""
    folder, artifact = folders
    assert run_import(folder, artifact) == ExitCode.OK
    old = manifest_of(artifact)
    changed = folder / "decode.b2.om"
    model = ModelDef()
    model.ParseFromString(changed.read_bytes())
    model.graph[0].op.add(name="another", type="Const")
    changed.write_bytes(model.SerializeToString())
    (folder / "soc.txt").write_text("Ascend910_9391")
    shutil.copyfile(changed, artifact / "graphs" / "decode.b2.om")
    (artifact / "graphs" / ".prefill.b1.om.part").write_bytes(b"half")
    with pytest.raises(ArtifactError, match=r"decode\.b2\.om"):
        Model(artifact)
    assert run_import(folder, artifact) == ExitCode.OK
    new = manifest_of(artifact)
    assert new.target.soc == "Ascend910_9391"
    assert [one.sha256 == other.sha256 for one, other in zip(old.graphs, new.graphs, strict=True)] == [
        True,
        True,
        False,
    ]
    assert not list(artifact.rglob(".*.part"))
    with Model(artifact):
        pass


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def link_out(folder: Path) -> None:
    (folder / "decode.b1.om").rename(folder.parent / "elsewhere.om")
    (folder / "decode.b1.om").symlink_to(folder.parent / "elsewhere.om")


def link_to_itself(folder: Path) -> None:
    (folder / "decode.b1.om").unlink()
    (folder / "decode.b1.om").symlink_to("decode.b1.om")


def change_model(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """`change` takes the operators by name."""
    model = ModelDef()
    model.ParseFromString(path.read_bytes())
    change({op.name: op for op in model.graph[0].op})
    path.write_bytes(model.SerializeToString())


def with_rows_of(width: int) -> Callable[[Path], None]:
    """As if built from a graph of another protocol, or one that returns another block."""

    def widen(operators: dict[str, Any]) -> None:
        operators["NetOutput"].input_desc[0].shape.dim[1] = width

    return lambda folder: change_model(folder / "decode.b1.om", widen)


def swapped(folder: Path) -> None:
    """Two inputs of one size, as in a graph that takes them in another order."""

    def swap(operators: dict[str, Any]) -> None:
        one, other = operators["slots_b1"], operators["prompt_slot"]
        assert one.output_desc[0].shape == other.output_desc[0].shape
        one.name, other.name = other.name, one.name

    change_model(folder / "decode.b1.om", swap)


def replace_by_folder(folder: Path) -> None:
    (folder / "decode.b1.om").unlink()
    (folder / "decode.b1.om").mkdir()


def without_last_input(folder: Path) -> None:
    model = ModelDef()
    path = folder / "prefill.b1.om"
    model.ParseFromString(path.read_bytes())
    ops = model.graph[0].op
    last = max((op for op in ops if op.type != "NetOutput"), key=lambda op: op.attr["index"].i)
    ops.remove(last)
    path.write_bytes(model.SerializeToString())


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (remove("decode.b2.om"), "expected decode.b2.om, found 2 of 3 files"),
    "empty": (write("decode.b1.om", b""), "the file is empty"),
    "stray": (write("round.b1.om", b"x"), "an .om file of no graph of the artifact"),
    "link": (link_out, "a link out of the folder"),
    "folder": (replace_by_folder, "not a file"),
    "loop": (link_to_itself, "not a file"),
    "garbage": (write("decode.b1.om", b"\0garbage"), "ACL reads other files, and not this one"),
    "chip": (write("soc.txt", b"not a chip\n"), "no name of a chip"),
    "other outputs": (
        with_rows_of(Result.WIDTH + 1),
        "key bytes of outputs, the rows of result, expected [128], found [136]",
    ),
    "another block": (with_rows_of(Control.WIDTH), "the rows of result, expected [128], found [256]"),
    "inputs swapped": (swapped, "expected slots_b1, found prompt_slot"),
    "fewer inputs": (without_last_input, "the file was built from another graph"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_built_from_the_artifact_is_refused(
    folders: tuple[Path, Path], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the artifact stays as it was."""
    folder, artifact = folders
    change, text = FAULTS[fault]
    change(folder)
    before = sorted((path, path.stat().st_mtime_ns) for path in artifact.rglob("*"))
    assert run_import(folder, artifact) == ExitCode.ARTIFACT
    err = capsys.readouterr().err
    assert text in err and err.count("\n") == 1
    assert sorted((path, path.stat().st_mtime_ns) for path in artifact.rglob("*")) == before


def test_a_link_inside_the_folder_will_do(folders: tuple[Path, Path]) -> None:
    folder, artifact = folders
    (folder / "kept").mkdir()
    (folder / "decode.b1.om").rename(folder / "kept" / "one")
    (folder / "decode.b1.om").symlink_to("kept/one")
    assert run_import(folder, artifact) == ExitCode.OK
    assert not (artifact / "graphs/decode.b1.om").is_symlink()


def test_other_artifacts_and_folders_are_refused(
    folders: tuple[Path, Path], checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, artifact = folders
    opened = Checkpoint.open(checkpoint)
    shape = SessionShape(opened.config, num_steps=0, max_seq_len=64, prefill_chunk=16)
    onnx = write_uncompiled(tmp_path / "onnx", opened, shape)
    assert run_import(folder, onnx) == ExitCode.USAGE
    assert "key target.emit, expected air, found onnx" in capsys.readouterr().err
    assert run_import(folder, tmp_path / "nothing") == ExitCode.ARTIFACT
    assert "manifest cannot be read" in capsys.readouterr().err
    assert run_import(tmp_path / "nothing", artifact) == ExitCode.USAGE
    assert "a folder of .om files" in capsys.readouterr().err


def test_names_that_a_compiler_added_to_are_no_difference(folders: tuple[Path, Path]) -> None:
    folder, artifact = folders

    def decorate(operators: dict[str, Any]) -> None:
        for name, operator in operators.items():
            operator.name = {"slots_b1": "a/slots_b1_0", "prompt_slot": ""}.get(name, name + "__decorated")

    change_model(folder / "decode.b1.om", decorate)
    assert run_import(folder, artifact) == ExitCode.OK
    with Model(artifact) as model, model.session(slots=1):
        pass


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (with_rows_of(Result.WIDTH + 1), "output 0, rows of result, expected 128 bytes, found 136"),
        (swapped, "expected slots_b1, found prompt_slot"),
    ],
)
def test_without_cann_it_says_what_was_not_checked(
    folders: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    told: str,
) -> None:
    """What CANN would have told is told when a session loads the files, before anything runs."""
    folder, artifact = folders
    change(folder)
    monkeypatch.setattr(om_interface, "_LIBRARY", "libnosuch.so")
    assert run_import(folder, artifact) == ExitCode.OK
    err = capsys.readouterr().err
    assert "inputs and outputs of the .om files were not checked: libnosuch.so does not load" in err
    with Model(artifact) as model, pytest.raises(ArtifactError) as caught:
        model.session(slots=1)
    assert "graph was built for another artifact" in str(caught.value)
    assert "decode.b1.om, key " in str(caught.value) and told in str(caught.value)


@pytest.fixture
def atc(tmp_path: Path) -> dict[str, str]:
    """An environment whose `atc` copies."""
    program = tmp_path / "bin" / "atc"
    program.parent.mkdir()
    program.write_text(ATC)
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}


def ge_evaluation(artifact: Path) -> ModelRun:
    """Every launch evaluates the GE IR that the graph's file holds."""
    records = {str(artifact / one.file): one for one in manifest_of(artifact).graphs}
    models = {path: ModelDef() for path in records}
    for path, model in models.items():
        model.ParseFromString(Path(path).read_bytes())

    def run(path: str, inputs: list[memoryview], outputs: list[memoryview]) -> None:
        tensors = [
            torch.frombuffer(view, dtype=getattr(torch, one.dtype)).view(one.shape)
            for view, one in zip(inputs, records[path].tensors, strict=True)
        ]
        [rows] = evaluate(models[path].graph[0], tensors, "file")
        outputs[0][: rows.nbytes] = rows.numpy().tobytes()

    return run


def test_from_graphs_to_tokens(
    converted: Converted, quick_checkpoint: Path, tmp_path: Path, cann: FakeCann, atc: dict[str, str]
) -> None:
    """Converted, built by the script, imported and run."""
    programs = {f"{name}.b{batch}": program for (name, batch), program in converted.programs.items()}
    artifact = write_uncompiled(
        tmp_path / "art",
        Checkpoint.open(quick_checkpoint),
        converted.shape,
        device="npu",
        emit="air",
        content=lambda graph: programs[graph.key].model.SerializeToString(),
        graph_tensors={key: program.tensors for key, program in programs.items()},
        returns=lambda graph: programs[graph.key].returns,
    )
    script = artifact / "build_om.sh"
    script.write_text(build_om_script([f"graphs/{key}.air" for key in programs]))
    failed = subprocess.run(["sh", script, "Wrong1"], env=atc, capture_output=True, cwd=tmp_path)
    assert failed.returncode != 0 and not (artifact / "om" / "soc.txt").exists()
    subprocess.run(["sh", script, SOC], env=atc, check=True, cwd=tmp_path)
    assert run_import(artifact / "om", artifact) == ExitCode.OK

    ask = Ask((3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8), 9, temperature=0.8, seed=5)
    [expected] = run_in(eager_session(artifact), [ask])
    with cann.running_models(ge_evaluation(artifact)), nextn.load(artifact) as engine:
        [completion] = engine.generate(
            [list(ask.prompt)], max_new_tokens=9, temperature=0.8, seed=5, ignore_eos=True
        )
    assert list(completion.token_ids) == expected.tokens
    assert list(completion.accept_lens) == expected.accept_lens


@pytest.mark.full
def test_from_checkpoint_to_selftest(
    checkpoint: Path, tmp_path: Path, cann: FakeCann, atc: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands in a row, as on a machine with an NPU; the golden runs are those of the eager modules."""
    artifact = tmp_path / "art"
    options = ("--max-seq-len", "64", "--prefill-chunk", "16", "--speculative-num-steps", "1")
    compile_air([str(checkpoint), "-o", str(artifact), "--dtype", "float32", *options])
    subprocess.run(["sh", str(artifact / "build_om.sh"), SOC], env=atc, check=True)
    assert run_import(artifact / "om", artifact) == ExitCode.OK
    capsys.readouterr()
    with cann.running_models(ge_evaluation(artifact)):
        assert nextn_run([str(artifact), "--selftest", "--device", "npu"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "FAIL" not in out and out.splitlines()[-1].startswith("PASS: ")
    with cann.running_models(ge_evaluation(artifact)), cann.failing("aclmdlExecuteAsync"):
        assert nextn_run([str(artifact), "--selftest", "--device", "npu"]) == ExitCode.ARTIFACT
    assert "FAIL  run 0 (decode) runs: aclmdlExecuteAsync failed" in capsys.readouterr().out


def test_commands_look_at_it_without_cann(folders: tuple[Path, Path]) -> None:
    folder, artifact = folders
    assert run_import(folder, artifact) == ExitCode.OK
    command = [str(Path(sys.executable).parent / "nextn-run"), str(artifact)]
    for mode in ("--info", "--verify-weights"):
        looked = subprocess.run([*command, mode], capture_output=True, text=True)
        assert looked.returncode == ExitCode.OK, looked.stderr
    for run in (("--token-ids", "1"), ("--selftest",), ("--selftest", "--json")):
        ran = subprocess.run([*command, *run], capture_output=True, text=True)
        assert (ran.returncode, ran.stdout) == (ExitCode.RUNTIME, ""), run
        assert "cannot load CANN's runtime; source its set_env.sh (file libascendcl.so, found " in ran.stderr
        assert ran.stderr.count("\n") == 1
