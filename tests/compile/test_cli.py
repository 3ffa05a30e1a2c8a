"""Flags of nextn-compile: each value that cannot be honoured is one line and the right exit code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nextn.compile.cli import main
from tests.commands import NEXTN_COMPILE

USAGE_FAULTS = {
    "": "name a checkpoint folder, or `demo`",
    "demo": "-o ARTIFACT is required",
    "demo --dry-run --colour": "unrecognized arguments: --colour",
    "demo --dry-run --job 2": "unrecognized arguments: --job 2",
    "demo --dry-run --device tpu": "invalid choice: 'tpu'",
    "demo --dry-run --device npu --emit onnx": "--device npu --emit onnx is not in this build",
    "demo --dry-run --emit onnx --isa avx2": "--isa chooses instructions of a CPU",
    "demo --dry-run --emit onnx --opset 17": "--opset is out of range",
    "demo --dry-run --emit onnx --opset 27": "expected 18..26, found 27",
    "demo --dry-run --device cuda --emit air": "--device cuda --emit air is not in this build",
    "demo --dry-run --device npu --emit aoti": "--device npu --emit aoti is not in this build",
    "demo --dry-run --device npu --isa avx2": "--isa chooses instructions of a CPU",
    "demo --dry-run --soc Ascend910B1": "--soc names the chip that captures graphs",
    "demo --dry-run --device npu --emit air --soc Ascend910B1": "expected --device npu --emit pt2",
    "demo --dry-run --device npu --soc Ascend310P3": "expected Ascend910B..., Ascend910_93..., Ascend950...",
    "demo --dry-run --device npu --soc Ascend950PR_9579 --batch-sizes 1,2,3,4,5": "at most 4, found 5",
    "demo --dry-run --device npu --emit air --isa avx2": "--isa chooses instructions of a CPU",
    "demo --dry-run --device cpu --emit air": "--device cpu --emit air is not in this build",
    "demo --dry-run --opset 18": "--opset is an operator set of ONNX",
    "demo --dry-run --weights-as stored": "for which --device npu has graphs, with --emit air or --npu-fused",
    "demo --dry-run --device npu --emit air --weights-as stored": "this checkpoint has none",
    "--config-only c.json --dry-run --device npu --emit air --weights-as stored": "--config-only has none",
    "demo --dry-run --npu-custom-ops none": "which --device npu --emit air writes",
    "demo --dry-run --npu-fused": "--npu-fused chooses operators of an NPU",
    "demo --dry-run --device npu --emit air --npu-custom-ops HcPre,Hc": "found 'Hc')",
    "demo --dry-run --weights-as bfloat16": "--dtype and --weights-as must agree",
    "demo --dry-run --weights-as int4": "invalid choice: 'int4'",
    "demo --inspect -o x": "--inspect only looks: --output would do nothing",
    "demo --check-finite --force": "--check-finite only looks: --force would do nothing",
    "demo --inspect --dry-run": "--inspect only looks: --dry-run would do nothing",
    "demo --inspect --trace-only": "--inspect only looks: --trace-only would do nothing",
    "demo --trace-only --dry-run": "--trace-only only looks: --dry-run would do nothing",
    "--config-only config.json --inspect": "--config-only has no tensors to look at",
    "--config-only config.json --check-finite": "--config-only has no tensors to look at",
    "--config-only c.json --dry-run --speculative-draft-model-path x": "--config-only has no tensors",
    "--config-only config.json": "--config-only has no weights to compile",
    "--config-only config.json -o x": "--config-only has no weights to compile",
    "demo --config-only config.json --dry-run": "--config-only stands in for a checkpoint",
    "--import-om folder": "--import-om takes two folders",
    "--import-om folder -o x demo": "CHECKPOINT would do nothing",
    "--import-om folder -o x --batch-sizes 2": "--batch-sizes would do nothing",
    "demo --dry-run --dtype float16": "invalid choice: 'float16'",
    "demo --dry-run --batch-sizes 0": "expected 1..1024, found 0",
    "demo --dry-run --batch-sizes " + "9" * 5000: "integers separated by commas",
    "demo --dry-run --batch-sizes 1,": "integers separated by commas",
    "demo --dry-run --batch-sizes -1": "found -1",
    "demo --dry-run --max-seq-len 1": "--max-seq-len is out of range",
    "demo --dry-run --max-seq-len 2049": "expected 2..2048, found 2049",
    "demo --dry-run --prefill-chunk 0": "--prefill-chunk is out of range",
    "demo --dry-run --jobs 0": "--jobs is out of range",
    "demo --dry-run --jobs two": "invalid int value: 'two'",
    "demo --dry-run --speculative-num-steps 9": "expected 0..8, found 9",
    "demo --dry-run --speculative-num-steps -1": "expected 0..8, found -1",
    "demo --dry-run --speculative-eagle-topk 4": "a round verifies one chain of drafts",
    "demo --dry-run --speculative-algorithm EAGLE3": "invalid choice: 'EAGLE3'",
}


@pytest.mark.parametrize("arguments", USAGE_FAULTS)
def test_usage_faults(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nextn-compile: error: ") and err.count("\n") == 1
    assert USAGE_FAULTS[arguments] in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["", "--dry-run"],
        ["demo", "-o", ""],
        ["demo", "-o", "", "--dry-run"],
        ["--config-only", "", "--dry-run"],
        ["demo", "--dry-run", "--speculative-draft-model-path", ""],
    ],
)
def test_empty_names_are_none(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An empty path would mean the current folder."""
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        (">&-", 5, "stdout is closed"),
        (">/dev/full", 5, "No space left on device"),
        pytest.param("| true; exit ${PIPESTATUS[0]}", 5, "", marks=pytest.mark.full),
        ("2>&-", 0, ""),
        pytest.param("--colour 2>/dev/full", 2, "", marks=pytest.mark.full),
        pytest.param("--colour 2>&-", 2, "", marks=pytest.mark.full),
    ],
)
def test_closed_and_full_standard_streams(redirection: str, code: int, message: str) -> None:
    command = f"{NEXTN_COMPILE} demo --dry-run {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 1
    assert "error" not in done.stdout


def test_a_missing_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path / "absent"), "--dry-run"]) == 3
    assert "no such checkpoint folder" in capsys.readouterr().err


def test_demo_is_a_word_not_a_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--dry-run"]) == 0
    assert main(["./demo", "--dry-run"]) == 3


def test_another_window_is_corrected_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("demo --dry-run --speculative-num-steps 2 --speculative-num-draft-tokens 5".split()) == 0
    out, err = capsys.readouterr()
    assert err.startswith("nextn-compile: warning: --speculative-num-draft-tokens 5 is set to 3")
    assert "k = 2" in out


def test_nextn_is_an_alias_of_eagle(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for algorithm in ("EAGLE", "NEXTN"):
        assert main(["demo", "--dry-run", "--json", "--speculative-algorithm", algorithm]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_debug_adds_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err and err.splitlines()[-1].startswith("nextn-compile: error: ")


def test_weights_in_the_compute_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("demo --dry-run --weights-as float32".split()) == 0
    assert main("demo --dry-run --dtype bfloat16 --weights-as bfloat16".split()) == 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("nextn-compile 0.")
