"""`--dry-run` against sizes worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nextn.compile.build.machine import Machine
from nextn.compile.build.pool import worker_count
from nextn.compile.build.progress import readable_bytes
from nextn.compile.cli import main

# The `window_only` case: vocab 101, hidden 64, 2 streams, 2 layers of window 8, 4 heads of 32, ranks 32 and
# 16, 2 output groups, 4 experts of 32 with 2 chosen, one shared expert; the first layer is hash-routed.
_MATRICES = 4 * (32 * 64 + 128 * 32 + 32 * 64 + 32 * 64 + 64 * 32)  # wq_a wq_b wkv wo_a wo_b
_EXPERTS = 4 * (4 * 3 * 32 * 64 + 3 * 32 * 64)  # routed and shared: w1 w2 w3
_NORMS = 4 * (64 + 64 + 32 + 32 + 4)  # attention, ffn, q, kv, sink
_MIXING = 4 * 2 * (8 * 128 + 8 + 3)  # attention and ffn: fn, base, scale
_ROUTER = 4 * 4 * 64
_HASH_TABLE, _ROUTER_BIAS = 8 * 101 * 2, 4 * 4
_LAYER = _MATRICES + _EXPERTS + _NORMS + _MIXING + _ROUTER
_HEAD_MIXING = 4 * (2 * 128 + 2 + 1)
_SHARED = 2 * 4 * 101 * 64 + 4 * 64 + _HEAD_MIXING  # embedding, head, norm, stream head
_NEXTN = 2 * 4 * 64 * 64 + 3 * 4 * 64 + _HEAD_MIXING + _LAYER + _ROUTER_BIAS  # projections, three norms
_FREQUENCIES = 2 * 4 * 8

# Rings hold window 8 + 9 - 1 = 16 rows: tokens, Target streams of width 128, one window of width 32 each.
_BLOCKS = 8 * (32 + 16)
_PLAIN_STATE = _BLOCKS + 8 * 16 + 4 * 16 * 128 + 2 * 4 * 16 * 32
_NEXTN_STATE = 4 * 128 + 4 * 16 * 32


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--dry-run", "--json"]) == 0
    plan: dict[str, object] = json.loads(capsys.readouterr().out)
    return plan


def test_speculative_plan(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "measure", lambda: Machine(cpus=8, memory=1 << 40))
    plan = dry_run(capsys, str(checkpoint), "--batch-sizes", "4,1,4", "--prefill-chunk", "16", "--jobs", "2")
    weights = 2 * _LAYER + _HASH_TABLE + _ROUTER_BIAS + _SHARED + _NEXTN + _FREQUENCIES
    assert plan["weight_bytes"] == weights
    assert plan["state_bytes_per_slot"] == _PLAIN_STATE + _NEXTN_STATE
    assert plan["state_bytes"] == 5 * (_PLAIN_STATE + _NEXTN_STATE)
    assert plan["input_bytes"] == 8 * (1 + 4 + 1 + 16 + 1)
    assert plan["run_bytes"] == weights + 5 * (_PLAIN_STATE + _NEXTN_STATE) + 8 * 23
    assert plan["batch_sizes"] == [1, 4] and plan["slots"] == 4
    assert plan["num_graphs"] == 2 + 2 * 6
    assert plan["compile_jobs"] == 2
    assert plan["compile_bytes"] == 2 * plan["compile_job_bytes"]  # type: ignore[operator]


def test_plain_plan(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = dry_run(capsys, str(checkpoint), "--speculative-num-steps", "0")
    assert plan["weight_bytes"] == 2 * _LAYER + _HASH_TABLE + _ROUTER_BIAS + _SHARED + _FREQUENCIES
    assert plan["state_bytes_per_slot"] == _PLAIN_STATE
    assert [(graph["name"], graph["batch"], graph["rows"]) for graph in plan["graphs"]] == [  # type: ignore[attr-defined]
        ("prefill", 1, 128),
        ("decode", 1, 1),
    ]


def test_the_default_length_is_the_models(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(capsys, str(checkpoint))["max_seq_len"] == 4096
    assert dry_run(capsys, "demo")["max_seq_len"] == 2048


def test_a_dry_run_reads_no_weights(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The body of the weights file may be garbage: only its header is read."""
    source = checkpoint / "model.safetensors"
    header = 8 + int.from_bytes(source.read_bytes()[:8], "little")
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(source.read_bytes()[:header])
        file.truncate(source.stat().st_size)
    assert dry_run(capsys, str(tmp_path)) == dry_run(capsys, str(checkpoint))


def test_a_config_alone_is_enough(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named as the file or as its folder."""
    planned = dry_run(capsys, str(checkpoint))
    del planned["layout"]
    assert dry_run(capsys, "--config-only", str(checkpoint / "config.json")) == planned
    assert dry_run(capsys, "--config-only", str(checkpoint)) == planned


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_250_000, "1.2 MB"), (3 * 10**12, "3.0 TB")],
)
def test_readable_bytes(count: int, text: str) -> None:
    assert readable_bytes(count) == text


def test_workers_are_bounded() -> None:
    machine = Machine(cpus=4, memory=6000)
    assert worker_count(8, 1000, None, machine) == 4
    assert worker_count(8, 2000, None, machine) == 3
    assert worker_count(1, 1, None, machine) == 1
    assert worker_count(8, 12000, None, machine) == 1
    assert worker_count(8, 1000, 5, machine) == 5
    assert worker_count(8, 1000, 7, machine) == 6
    assert worker_count(2, 1, 64, machine) == 2


def test_memory_bounds_the_jobs_asked_for_and_says_so(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "measure", lambda: Machine(cpus=8, memory=5 << 29))
    assert main([str(checkpoint), "--dry-run", "--json", "--jobs", "4"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["compile_jobs"] == 2
    assert err == (
        "nextn-compile: warning: --jobs 4 is set to 2: 2.7 GB of memory is free, and a job may take 1.1 GB\n"
    )


def rewritten(checkpoint: Path, folder: Path, config: dict[str, object], **tensors: torch.Tensor) -> Path:
    """A copy of the checkpoint with other config values and tensors; `__` in a name stands for a dot."""
    folder.mkdir()
    text = json.loads((checkpoint / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(text))
    changed = load_file(checkpoint / "model.safetensors") | {
        name.replace("__", "."): tensor for name, tensor in tensors.items()
    }
    save_file(changed, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("expert", [-1, 4, 2**40])
def test_a_dry_run_checks_routing_tables(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], expert: int
) -> None:
    table = load_file(checkpoint / "model.safetensors")["layers.0.ffn.gate.tid2eid"].clone()
    table[-1, -1] = expert
    folder = rewritten(checkpoint, tmp_path / "bad", {}, layers__0__ffn__gate__tid2eid=table)
    assert main([str(folder), "--dry-run"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    for part in (
        "expert index out of range",
        "model.safetensors",
        "layers.0.ffn.gate.tid2eid",
        f"found {expert}",
    ):
        assert part in err


def test_tensors_decide_how_weights_are_stored(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = rewritten(checkpoint, tmp_path / "stated", {"quantization_config": {"quant_method": "fp8"}})
    assert main([str(folder), "--dry-run", "--json"]) == 0
    err = capsys.readouterr().err
    assert err.startswith(f"nextn-compile: warning: {folder}: config.json says quant_method fp8, ")
    assert err.endswith("but the tensors are float32: taken as stored\n")
    assert main([str(folder), "--inspect", "--json"]) == 0
    assert "says quant_method fp8" in json.loads(capsys.readouterr().out)["warnings"][-1]
