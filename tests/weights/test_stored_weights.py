"""Weights packed as they are stored: codes and scales in the file, so that a kernel may take them."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from nextn.runtime.contract.manifest import WeightRecord
from nextn.runtime.contract.strict_json import decode
from nextn.weights import Checkpoint, load_packed, load_weights, pack_weights, packed_weights
from tests.oracles import published_layouts as layouts
from tests.oracles.synthetic import random_weights
from tests.weights.folders import tiny_config, tiny_tensors, write_folder

# Experts whose scales stack: 128 rows of each matrix in one fp8 block.
STACKING = {"hidden_size": 256, "moe_intermediate_size": 128}


def stored(folder: Path, out: Path) -> tuple[dict[str, dict], dict[str, torch.Tensor]]:
    """Manifest entries by name, and the tensors of the file."""
    checkpoint = Checkpoint.open(folder)
    entries = pack_weights(
        checkpoint,
        packed_weights(checkpoint.config, True),
        torch.bfloat16,
        out,
        keep=("fp8_block", "mxfp4", "int8_row"),
    )
    return {entry["name"]: entry for entry in entries}, load_packed(out)


def release_folder(root: Path, config: dict) -> tuple[Path, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    weights = random_weights(config, seed=2)
    tensors, twin = layouts.release(weights)
    return layouts.write_sharded(root / "release", config, tensors), tensors, twin


def test_fp8_and_fp4_stay_codes(tmp_path):
    config = tiny_config() | STACKING
    folder, source, twin = release_folder(tmp_path, config)
    entries, tensors = stored(folder, tmp_path / "weights")

    dense = entries["layers.1.attn.wo_b.weight"]
    assert dense["storage"] == {"layout": "fp8_block", "dtype": "float8_e4m3fn", "shape": [256, 32]}
    assert (dense["dtype"], dense["shape"], dense["role"]) == ("bfloat16", [256, 32], "matrix")
    assert dense["scales"] == "layers.1.attn.wo_b.scales"
    assert [name for _, name, _ in dense["source"]] == ["layers.1.attn.wo_b.weight"]
    scales = entries[dense["scales"]]
    assert (scales["role"], scales["dtype"], scales["shape"]) == ("scales", "float8_e8m0fnu", [2, 1])
    assert [name for _, name, _ in scales["source"]] == ["layers.1.attn.wo_b.scale"]
    codes = tensors["layers.1.attn.wo_b.weight"].float()
    factors = tensors[dense["scales"]].float().repeat_interleave(128, 0)
    assert torch.equal(codes * factors, twin["layers.1.attn.wo_b.weight"])

    experts = entries["layers.2.ffn.experts.w13.weight"]
    assert experts["storage"] == {"layout": "mxfp4", "dtype": "uint8", "shape": [6, 256, 128]}
    assert experts["shape"] == [6, 256, 256]
    assert entries[experts["scales"]]["shape"] == [6, 256, 8]
    for expert in range(6):
        for place, name in enumerate(("w1", "w3")):
            rows = slice(128 * place, 128 * place + 128)
            matrix = f"layers.2.ffn.experts.{expert}.{name}"
            found = tensors["layers.2.ffn.experts.w13.weight"][expert, rows]
            assert torch.equal(found, source[f"{matrix}.weight"].view(torch.uint8))
            found = tensors[experts["scales"]][expert, rows].view(torch.uint8)
            assert torch.equal(found, source[f"{matrix}.scale"].view(torch.uint8))

    shared = entries["layers.2.ffn.shared_experts.w13.weight"]
    assert shared["storage"]["layout"] == "fp8_block"
    assert entries[shared["scales"]]["shape"] == [2, 2]


def test_int8_rows_stay_codes(tmp_path):
    tensors, twin, description = layouts.modelslim(tiny_tensors())
    folder = layouts.write_modelslim(tmp_path / "w8a8", tiny_config(), tensors, description)
    entries, packed = stored(folder, tmp_path / "weights")
    experts = entries["mtp.0.ffn.experts.w2.weight"]
    assert experts["storage"] == {"layout": "int8_row", "dtype": "int8", "shape": [6, 64, 32]}
    assert entries[experts["scales"]]["dtype"] == "float32"
    values = packed["mtp.0.ffn.experts.w2.weight"].float() * packed[experts["scales"]]
    for expert in range(6):
        assert torch.equal(values[expert], twin[f"mtp.0.ffn.experts.{expert}.w2.weight"])
    # The zero offsets have no place in the file, but their bytes were read and are recorded.
    names = [name for _, name, _ in entries[experts["scales"]]["source"]]
    assert "mtp.0.ffn.experts.0.w2.weight_offset" in names


def test_scales_that_would_not_stack_are_worked_out(tmp_path):
    """Two matrices of 32 rows share no row of blocks: their fused weight is plain."""
    folder, _, _ = release_folder(tmp_path, tiny_config())
    entries, tensors = stored(folder, tmp_path / "weights")
    fused = entries["layers.1.ffn.shared_experts.w13.weight"]
    assert fused["storage"]["layout"] == "plain" and fused["scales"] is None
    checkpoint = Checkpoint.open(folder)
    plain = load_weights(checkpoint, packed_weights(checkpoint.config, True), torch.bfloat16)
    for name, entry in entries.items():
        if entry["storage"]["layout"] == "plain" and entry["role"] != "scales":
            assert torch.equal(tensors[name], plain[name]), name


def test_a_plain_checkpoint_has_nothing_to_keep(tmp_path):
    folder = write_folder(tmp_path / "plain", tiny_config(), tiny_tensors())
    entries, _ = stored(folder, tmp_path / "stored")
    checkpoint = Checkpoint.open(folder)
    plain = pack_weights(
        checkpoint, packed_weights(checkpoint.config, True), torch.bfloat16, tmp_path / "plain_file"
    )
    assert list(entries.values()) == plain
    assert (tmp_path / "stored").read_bytes() == (tmp_path / "plain_file").read_bytes()


def test_the_file_is_smaller_and_stock_safetensors_reads_it(tmp_path):
    folder, _, _ = release_folder(tmp_path, tiny_config() | STACKING)
    _, tensors = stored(folder, tmp_path / "stored")
    checkpoint = Checkpoint.open(folder)
    pack_weights(checkpoint, packed_weights(checkpoint.config, True), torch.bfloat16, tmp_path / "plain")
    assert (tmp_path / "stored").stat().st_size < 0.6 * (tmp_path / "plain").stat().st_size
    with safe_open(tmp_path / "stored", "pt") as stock:
        for name, tensor in tensors.items():
            found = stock.get_tensor(name)
            assert found.dtype == tensor.dtype and math.prod(found.shape) == tensor.numel()


@pytest.mark.parametrize("encoding", ["mxfp4", "fp8_block", "int8_row"])
def test_every_layout_of_the_manifest_is_written(tmp_path, encoding):
    if encoding == "int8_row":
        tensors, _ = layouts.compressed_tensors(tiny_tensors())
        folder = layouts.write_sharded(tmp_path / "int8", tiny_config(), tensors)
    else:
        folder, _, _ = release_folder(tmp_path, tiny_config())
    entries, _ = stored(folder, tmp_path / "weights")
    records = [decode(WeightRecord, json.loads(json.dumps(entry))) for entry in entries.values()]
    assert {record.scales for record in records} - {None} <= set(entries)
    assert encoding in {entry["storage"]["layout"] for entry in entries.values()}
