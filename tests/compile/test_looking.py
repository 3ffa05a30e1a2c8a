"""`--inspect`, `--check-finite` and the draft folder, through the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nextn.compile.cli import main
from tests.oracles import published_layouts as layouts
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return random_weights(CASES["tiny"].config, seed=5)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor]) -> Path:
    """The tiny case in the layout of the original release."""
    folder = tmp_path_factory.mktemp("release")
    config = CASES["tiny"].config | {"quantization_config": layouts.QUANTIZATION_CONFIG}
    return layouts.write_sharded(folder, config, layouts.release(tensors)[0])


@pytest.fixture(scope="module")
def resaved(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor]) -> Path:
    """The same Target without its draft."""
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    return write_checkpoint(tmp_path_factory.mktemp("resaved"), CASES["tiny"].config, kept)


def inspected(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--inspect", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_inspection_of_the_release(release: Path, tensors: dict[str, torch.Tensor], capsys: Capture) -> None:
    """Parameters and bytes counted from the tensors themselves."""
    found = inspected(capsys, str(release), "--max-seq-len", "256")
    assert (found["layout"], found["nextn"]) == ("original names", True)
    assert found["storage"] == "fp8 with 128 x 128 blocks and mxfp4 in groups of 32"
    assert [(layer["attention"], layer["routing"]) for layer in found["layers"]] == [
        ("SWA", "hash"),
        ("C4", "score"),
        ("C128", "score"),
    ]
    floats = {name: tensor.numel() for name, tensor in tensors.items() if tensor.is_floating_point()}
    draft = sum(count for name, count in floats.items() if name.startswith("mtp."))
    routed = sum(
        count for name, count in floats.items() if ".experts." in name and not name.startswith("mtp.")
    )
    assert found["parameters_nextn"] == draft
    assert found["parameters_target"] == sum(floats.values()) - draft
    assert found["parameters_active"] == found["parameters_target"] - routed * 4 // 6
    stored, _ = layouts.release(tensors)
    for dtype, name in ((torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8"), (torch.bfloat16, "BF16")):
        chosen = [tensor for tensor in stored.values() if tensor.dtype == dtype]
        assert found["bytes_by_dtype"][name] == {
            "tensors": len(chosen),
            "bytes": sum(tensor.nbytes for tensor in chosen),
        }
    # fp32: a C4 layer adds an entry and an index entry of 32 values every 4 tokens, a C128 one every 128.
    assert found["kv_bytes_per_token"] == 4 * (32 + 32) / 4 + 4 * 32 / 128
    assert found["kv_bytes_per_request"] == found["plan"]["state_bytes_per_slot"]
    assert found["plan"]["num_graphs"] == 8


def test_inspection_without_a_draft_plans_plain_decoding(resaved: Path, capsys: Capture) -> None:
    found = inspected(capsys, str(resaved))
    assert not found["nextn"] and "no NextN layer" in found["draft"]
    assert found["plan"]["num_steps"] == 0


def test_inspection_for_people(release: Path, capsys: Capture) -> None:
    assert main([str(release), "--inspect"]) == 0
    out = capsys.readouterr().out
    for text in ("fp8 with 128 x 128 blocks", "one NextN layer", "C128", "active per token", "round"):
        assert text in out


def test_layout_is_said_before_anything_is_built(release: Path, capsys: Capture) -> None:
    assert main([str(release), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "original names" in out and "is F8_E4M3 with F8_E8M0 scales" in out
    assert main([str(release), "--dry-run", "--json"]) == 0
    assert "mxfp4 in groups of 32" in json.loads(capsys.readouterr().out)["layout"]


def test_draft_folder(release: Path, resaved: Path, capsys: Capture) -> None:
    assert main([str(resaved), "--dry-run"]) == 3
    err = capsys.readouterr().err
    assert "--speculative-num-steps 0" in err and "--speculative-draft-model-path" in err
    assert main([str(resaved), "--dry-run", "--speculative-num-steps", "0"]) == 0
    capsys.readouterr()
    arguments = ["--speculative-draft-model-path", str(release)]
    assert main([str(resaved), "--dry-run", "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["num_steps"] == 3
    assert main([str(resaved), "--dry-run", "--speculative-num-steps", "0", *arguments]) == 0
    assert "--speculative-draft-model-path is not read" in capsys.readouterr().err


def test_all_finite(release: Path, capsys: Capture) -> None:
    assert main([str(release), "--check-finite"]) == 0
    assert "are finite" in capsys.readouterr().out


def test_values_that_are_not_finite(
    tensors: dict[str, torch.Tensor], tmp_path: Path, capsys: Capture
) -> None:
    """Plain NaN and Inf, and the NaN code of e4m3."""
    stored, _ = layouts.release(tensors)
    stored["norm.weight"][3] = math.nan
    stored["layers.1.attn.attn_sink"] = torch.full((4,), math.inf)
    codes = stored["layers.2.attn.wo_b.weight"].view(torch.uint8)
    codes[5, 7] = 0x7F
    folder = layouts.write_sharded(tmp_path, CASES["tiny"].config, stored)
    assert main([str(folder), "--check-finite", "--json"]) == 3
    out, err = capsys.readouterr()
    found = {item["tensor"]: (item["nan"], item["inf"]) for item in json.loads(out)["not_finite"]}
    assert found == {
        "norm.weight": (1, 0),
        "layers.1.attn.attn_sink": (0, 4),
        "layers.2.attn.wo_b.weight": (1, 0),
    }
    assert err.splitlines()[-1].startswith("nextn-compile: error: weights that are not finite")
    assert main([str(folder), "--check-finite"]) == 3
    assert "layers.1.attn.attn_sink: 0 NaN, 4 Inf" in capsys.readouterr().out


def test_scales_that_are_not_finite_do_not_end_the_search(
    tensors: dict[str, torch.Tensor], tmp_path: Path, capsys: Capture
) -> None:
    """Also beside `--inspect`, whose JSON is the same one document."""
    stored, _, description = layouts.modelslim(tensors)
    stored["layers.1.attn.wq_a.weight_scale"][0] = math.nan
    stored["layers.2.attn.wq_a.weight_scale"][1:3] = math.inf
    stored["norm.weight"][3] = math.nan
    folder = layouts.write_modelslim(tmp_path, CASES["tiny"].config, stored, description)
    assert main([str(folder), "--inspect", "--check-finite", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["layout"] == "original names"
    assert {item["tensor"]: (item["nan"], item["inf"]) for item in document["not_finite"]} == {
        "norm.weight": (1, 0),
        "layers.1.attn.wq_a.weight_scale": (1, 0),
        "layers.2.attn.wq_a.weight_scale": (0, 2),
    }


def test_a_damaged_draft_does_not_block_plain_decoding(
    tensors: dict[str, torch.Tensor], tmp_path: Path, capsys: Capture
) -> None:
    kept = {name: tensor for name, tensor in tensors.items() if name != "mtp.0.hnorm.weight"}
    folder = str(write_checkpoint(tmp_path, CASES["tiny"].config, kept))
    assert main([folder, "--dry-run"]) == 3
    capsys.readouterr()
    assert main([folder, "--dry-run", "--speculative-num-steps", "0"]) == 0
    assert "warning" in (err := capsys.readouterr().err) and "mtp.0.hnorm.weight" in err
    found = inspected(capsys, folder)
    assert not found["nextn"] and "key mtp.0.hnorm.weight" in found["draft"]
    assert found["plan"]["num_steps"] == 0


def test_no_draft_is_said_once(resaved: Path, capsys: Capture) -> None:
    assert main([str(resaved), "--dry-run"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "error: the checkpoint has no NextN layer" in line
    assert main([str(resaved), "--dry-run", "--speculative-num-steps", "0"]) == 0
    assert "warning: " in capsys.readouterr().err


def test_stacked_experts_are_counted_as_they_are_stored(
    tensors: dict[str, torch.Tensor], tmp_path: Path, capsys: Capture
) -> None:
    stacked = {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(("mtp.", "layers.2.ffn.experts."))
    }
    experts = [
        [tensors[f"layers.2.ffn.experts.{expert}.w{matrix}.weight"] for matrix in (1, 3)]
        for expert in range(6)
    ]
    down = [tensors[f"layers.2.ffn.experts.{expert}.w2.weight"] for expert in range(6)]
    stacked["model.layers.2.mlp.experts.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in experts])
    stacked["model.layers.2.mlp.experts.down_proj"] = torch.stack(down)
    folder = write_checkpoint(tmp_path, CASES["tiny"].config, stacked)
    found = inspected(capsys, str(folder))["bytes_by_dtype"]
    assert sum(item["tensors"] for item in found.values()) == len(stacked)
