"""`nextn-compile --device npu --emit air`, with the compile workers on the fake CANN."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef

import nextn.compile.build.worker
from nextn.compile.cli.arguments import build_parser
from nextn.compile.cli.command import compile_command
from nextn.compile.cli.options import normalise
from nextn.compile.targets.ascend import requirements
from nextn.compile.targets.ascend.fused_ops import CUSTOM_OPS, FUSED_OPS
from nextn.runtime.contract.errors import ExecutionError, ExitCode, UsageError
from nextn.runtime.contract.manifest import parse_manifest, to_json
from nextn.weights.config_json import parse_model_config
from tests.commands import NEXTN_COMPILE
from tests.oracles.synthetic import CASES, QUICK, random_weights, write_checkpoint

WORKER_ON_THE_FAKE = (sys.executable, "-m", "tests.fakes.cann", nextn.compile.build.worker.__file__)

SMALL = ("--max-seq-len", "64", "--prefill-chunk", "16", "--speculative-num-steps", "0")


def compile_air(arguments: list[str], worker: tuple[str, ...] = WORKER_ON_THE_FAKE) -> None:
    options, _ = normalise(build_parser().parse_args([*arguments, "--device", "npu", "--emit", "air"]))
    compile_command(options, ("nextn-compile", *arguments), worker)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = QUICK.config
    return write_checkpoint(tmp_path_factory.mktemp("air") / "quick", config, random_weights(config, 7))


@pytest.fixture(scope="module")
def artifact(checkpoint: Path) -> Path:
    """Plain decoding, the smallest set of graphs, in the default dtype."""
    output = checkpoint.parent / "artifact"
    compile_air([str(checkpoint), "-o", str(output), *SMALL])
    return output


@pytest.mark.parametrize(
    ("names", "rows"), [("none", 19), ("HcPre", 19), ("Compressor,LightningIndexer", 32)]
)
def test_operators_that_read_blocks_are_given_whole_ones(names: str, rows: int) -> None:
    arguments = ["demo", "--dry-run", "--device", "npu", "--emit", "air", *SMALL, "--npu-custom-ops", names]
    options, _ = normalise(build_parser().parse_args(arguments))
    config, _ = parse_model_config(CASES["tiny"].config, "config.json")
    assert options.session_shape(config).entry_rows(4) == rows


@pytest.mark.full
def test_a_named_operator_that_no_graph_calls(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_air(
        [str(checkpoint), "-o", str(tmp_path / "artifact"), *SMALL, "--npu-custom-ops", "LightningIndexer"]
    )
    assert "warning: no graph calls LightningIndexer" in capsys.readouterr().err


def test_manifest_and_files(artifact: Path) -> None:
    manifest = parse_manifest((artifact / "manifest.json").read_text(), "manifest.json")
    target = manifest.target
    assert (target.device, target.emit, target.dtype, target.isa) == ("npu", "air", "bfloat16", ())
    assert manifest.producer.compiler == f"torch_npu {requirements.TORCH_NPU}"
    assert [graph.file for graph in manifest.graphs] == ["graphs/prefill.b1.air", "graphs/decode.b1.air"]
    assert [graph.returns for graph in manifest.graphs] == ["result", "result"]
    assert manifest.ops["write_rows"] == "scatter_nd_update"
    for graph in manifest.graphs:
        model = ModelDef()
        model.ParseFromString((artifact / graph.file).read_bytes())
        inputs = [op for op in model.graph[0].op if op.type in ("Data", "RefData")]
        names = {op.attr["index"].i: op.name for op in inputs}
        assert [names[i] for i in range(len(names))] == [t.name.replace(".", "_") for t in graph.tensors]


def test_script_names_every_graph_once(artifact: Path) -> None:
    """Its atc lines were never run: atc comes with CANN."""
    script = (artifact / "build_om.sh").read_text()
    lines = [line for line in script.splitlines() if line.startswith("atc ")]
    assert lines == [
        f'atc --framework=1 --model=../graphs/{key}.air --output={key} --soc_version="$soc"'
        for key in ("prefill.b1", "decode.b1")
    ]
    checked = subprocess.run(["sh", "-n", artifact / "build_om.sh"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    without_chip = subprocess.run(["sh", artifact / "build_om.sh"], capture_output=True, text=True)
    assert without_chip.returncode != 0 and "usage: sh build_om.sh SOC" in without_chip.stderr


def test_the_same_command_finds_it_up_to_date(artifact: Path, checkpoint: Path, capsys) -> None:
    """Also with what the script built in it."""
    (artifact / "om").mkdir()
    compile_air([str(checkpoint), "-o", str(artifact), *SMALL], ("false",))
    assert "is up to date" in capsys.readouterr().out


@pytest.mark.parametrize("name", CUSTOM_OPS)
def test_the_same_command_with_a_custom_op_finds_it_up_to_date(
    artifact: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Of graphs that call it, which those of a model this small do not: the manifest is made to say so."""
    copy = Path(shutil.copytree(artifact, tmp_path / "art"))
    manifest = parse_manifest((copy / "manifest.json").read_text(), "manifest.json")
    given = {fused.op: f"{fused.name}, plain" for fused in FUSED_OPS if name in fused.custom_ops}
    assert given
    ops = manifest.ops | given | {"custom_ops": name}
    (copy / "manifest.json").write_text(to_json(replace(manifest, ops=ops)))
    command = [str(checkpoint), "-o", str(copy), *SMALL]
    compile_air([*command, "--npu-custom-ops", name], ("false",))
    assert "is up to date" in capsys.readouterr().out
    with pytest.raises(UsageError, match="made from other inputs"):
        compile_air(command, ("false",))


KILLED_IMPORT = """
import os, pathlib, signal, sys
from nextn.compile.cli import main
replace = os.replace
def replace_or_die(source, target):
    if pathlib.Path(target).name == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = replace_or_die
main(["--import-om", sys.argv[2], "-o", sys.argv[3]])
"""


@pytest.mark.parametrize(
    ("file", "left"),
    [
        ("decode.b1.om", [".decode.b1.om.part", ".manifest.json.part"]),
        ("manifest.json", [".manifest.json.part"]),
    ],
)
def test_what_a_killed_import_left_is_removed(
    artifact: Path,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    left: list[str],
) -> None:
    """By the compile that made the artifact, which is as it was."""
    copy = Path(shutil.copytree(artifact, tmp_path / "art"))
    folder = tmp_path / "om"
    folder.mkdir()
    for graph in (copy / "graphs").iterdir():
        shutil.copyfile(graph, folder / graph.with_suffix(".om").name)
    done = subprocess.run([sys.executable, "-c", KILLED_IMPORT, file, folder, copy])
    assert done.returncode == -signal.SIGKILL
    assert sorted(part.name for part in copy.rglob(".*")) == left
    compile_air([str(checkpoint), "-o", str(copy), *SMALL], ("false",))
    assert "is up to date" in capsys.readouterr().out
    assert not list(copy.rglob(".*"))

    (copy / ".manifest.json.part").mkdir()
    with pytest.raises(UsageError, match=r"is not an artifact .* found \.manifest\.json\.part"):
        compile_air([str(checkpoint), "-o", str(copy), *SMALL], ("false",))


def test_it_can_be_looked_at_but_not_run(artifact: Path) -> None:
    """Without CANN."""
    command = [Path(sys.executable).parent / "nextn-run", artifact]
    for mode, shown in (("--info", "npu bfloat16 (air)\n"), ("--verify-weights", "weights verified")):
        looked = subprocess.run([*command, mode], capture_output=True, text=True)
        assert looked.returncode == ExitCode.OK and shown in looked.stdout, looked.stderr
    done = subprocess.run([*command, "--token-ids", "1"], capture_output=True, text=True)
    assert done.returncode == ExitCode.ARTIFACT, done.stderr
    assert "run build_om.sh, then nextn-compile --import-om" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_torch_npu(monkeypatch: pytest.MonkeyPatch, checkpoint: Path, tmp_path: Path) -> None:
    def absent(name: str) -> str:
        raise requirements.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(requirements.metadata, "version", absent)
    with pytest.raises(ExecutionError, match="need torch_npu") as caught:
        compile_air([str(checkpoint), "-o", str(tmp_path / "art")])
    assert (caught.value.expected, caught.value.found) == (requirements.TORCH_NPU, "none")
    assert not (tmp_path / "art").exists()


def test_without_cann(checkpoint: Path, tmp_path: Path) -> None:
    """A worker without the fake is a machine without CANN: one sentence, before anything is written."""
    plain = (sys.executable, nextn.compile.build.worker.__file__)
    with pytest.raises(ExecutionError) as caught:
        compile_air([str(checkpoint), "-o", str(tmp_path / "deep" / "art")], plain)
    assert str(caught.value).startswith("torch_npu does not load; source CANN's set_env.sh (found ")
    assert not list(tmp_path.iterdir())


def test_a_torch_npu_that_ends_its_process(checkpoint: Path, tmp_path: Path) -> None:
    worker = (sys.executable, "-c", "import os, sys; print('loading', file=sys.stderr); os.abort()")
    with pytest.raises(ExecutionError, match=r"importing torch_npu ends .*exit -6; its last line: loading"):
        compile_air([str(checkpoint), "-o", str(tmp_path / "art")], worker)
    assert not list(tmp_path.iterdir())


def test_commands_without_cann(checkpoint: Path, tmp_path: Path) -> None:
    """torch would import torch_npu by itself, and fail before anything could be said."""
    environment = {name: value for name, value in os.environ.items() if "BACKEND_AUTOLOAD" not in name}
    command = [NEXTN_COMPILE, str(checkpoint)]
    for options in ((), ("--device", "npu", "--emit", "air")):
        arguments = [*command, "--dry-run", *options]
        done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
        assert done.returncode == ExitCode.OK, done.stderr
    arguments = [*command, "-o", str(tmp_path / "art"), "--device", "npu", "--npu-fused"]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    assert done.returncode == ExitCode.RUNTIME and done.stderr.count("\n") == 1
    assert done.stderr.startswith("nextn-compile: error: torch_npu does not load; source CANN's set_env.sh")
    assert not list(tmp_path.iterdir())


def test_plan_as_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_air([str(checkpoint), "--dry-run", "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert plan["dtype"] == "bfloat16" and plan["num_graphs"] == 8
