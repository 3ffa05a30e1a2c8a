"""`nextn-compile --emit onnx`, from the command line to the artifact."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import onnx
import pytest

import nextn.compile.targets.onnx.target
from nextn.compile.cli import main
from nextn.runtime.cli import main as nextn_run
from nextn.runtime.contract.errors import ExitCode
from nextn.runtime.contract.manifest import parse_manifest
from tests.onnx_artifact import SMALL
from tests.oracles.synthetic import random_weights, write_checkpoint

PLAIN = ("--max-seq-len", "64", "--prefill-chunk", "16", "--speculative-num-steps", "0", "--opset", "20")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("emit") / "small", SMALL, random_weights(SMALL, 7))


@pytest.fixture(scope="module")
def artifact(checkpoint: Path) -> Path:
    """Plain decoding, the smallest set of graphs, in an operator set that is not the default."""
    output = checkpoint.parent / "artifact"
    assert main([str(checkpoint), "-o", str(output), "--emit", "onnx", *PLAIN]) == ExitCode.OK
    return output


def test_manifest_and_files(artifact: Path) -> None:
    manifest = parse_manifest((artifact / "manifest.json").read_text(), "manifest.json")
    target = manifest.target
    assert (target.device, target.emit, target.dtype, target.isa) == ("cpu", "onnx", "float32", ())
    assert manifest.producer.compiler == f"onnx {metadata.version('onnx')}, opset 20"
    assert [graph.file for graph in manifest.graphs] == ["graphs/prefill.b1.onnx", "graphs/decode.b1.onnx"]
    assert manifest.ops["write_rows"] == "scatter_nd"
    files = {path.name for path in (artifact / "graphs").iterdir()}
    assert files == {"prefill.b1.onnx", "decode.b1.onnx", "weights.safetensors"}
    assert not (artifact / "weights.safetensors").exists(), "one copy of the weights"


def test_graphs_name_the_bytes_that_the_manifest_does(artifact: Path) -> None:
    """Every weight of a graph, under its name and beside it, and the checker finds it there."""
    manifest = parse_manifest((artifact / "manifest.json").read_text(), "manifest.json")
    weights = {one.name: one for one in manifest.weights.tensors}
    for graph in manifest.graphs:
        file = artifact / graph.file
        onnx.checker.check_model(str(file), full_check=True)
        model = onnx.load(file, load_external_data=False)
        found = {}
        for one in model.graph.initializer:
            if one.data_location == onnx.TensorProto.EXTERNAL:
                place = {item.key: item.value for item in one.external_data}
                found.setdefault(one.name.partition(".as_")[0], []).append(place)
        assert set(found) == {one.name for one in graph.tensors if one.kind == "weight"}
        for name, places in found.items():
            record = weights[name]
            expected = {"offset": str(record.offset), "length": str(record.nbytes)}
            assert all(place == {"location": "weights.safetensors", **expected} for place in places), name


def test_selftest(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Golden vectors were recorded from the eager modules."""
    assert nextn_run([str(artifact), "--selftest", "--json"]) == ExitCode.OK
    assert "FAIL" not in capsys.readouterr().out


def test_the_same_command_finds_it_up_to_date(
    artifact: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And another operator set is another artifact."""
    command = [str(checkpoint), "-o", str(artifact), "--emit", "onnx", *PLAIN]
    assert main([*command, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["up_to_date"]
    assert main([*command, "--opset", "21"]) == ExitCode.USAGE
    assert "made from other inputs or options" in capsys.readouterr().err


def test_without_onnx(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(nextn.compile.targets.onnx.target.metadata, "version", absent)
    command = [str(checkpoint), "-o", str(tmp_path / "artifact"), "--emit", "onnx", *PLAIN]
    assert main(command) == ExitCode.RUNTIME
    error = capsys.readouterr().err
    assert "pip install 'nextn[onnx]'" in error and error.count("\n") == 1
    assert not (tmp_path / "artifact").exists()
