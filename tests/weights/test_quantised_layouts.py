"""Each published quantised layout packs to the same bytes as the fp32 tensors its codes mean."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights import Checkpoint, load_weights, pack_weights, packed_weights
from tests.oracles import published_layouts as layouts
from tests.oracles.synthetic import CASES, random_weights
from tests.weights.eager_tokens import greedy_tokens
from tests.weights.folders import tiny_config, tiny_tensors, without_nextn, write_folder

# Several blocks and groups of every kind, none of them full at the edges.
WIDE = {"hidden_size": 200, "moe_intermediate_size": 72, "q_lora_rank": 136, "o_lora_rank": 72}


@dataclass(frozen=True)
class Written:
    """A quantised folder and the fp32 tensors it means."""

    folder: Path
    config: dict
    twin: dict[str, torch.Tensor]


def written(root: Path, layout: str, config: dict, weights: dict) -> Written:
    folder = root / layout.replace(" ", "_")
    return Written(folder, config, layouts.write_layout(folder, layout, config, weights))


def packed_bytes(folder: Path, out: Path, dtype: torch.dtype) -> bytes:
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.has_nextn
    pack_weights(checkpoint, packed_weights(checkpoint.config, True), dtype, out)
    return out.read_bytes()


@pytest.mark.parametrize("shape", ["tiny", "pro_like", "wide"])
@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_packs_like_its_fp32_twin(tmp_path, layout, shape):
    config = tiny_config() | WIDE if shape == "wide" else CASES[shape].config
    source = written(tmp_path, layout, config, random_weights(config, seed=11))
    twin = write_folder(tmp_path / "twin", config, source.twin)
    checkpoint = Checkpoint.open(source.folder)
    assert (checkpoint.layout.name, checkpoint.layout.storage) == layouts.LAYOUTS[layout]
    assert checkpoint.warnings == ()
    for dtype in (torch.float32, torch.bfloat16):
        found = packed_bytes(source.folder, tmp_path / "a", dtype)
        assert found == packed_bytes(twin, tmp_path / "b", dtype)


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_generates_like_its_fp32_twin(tmp_path, layout):
    source = written(tmp_path, layout, tiny_config(), tiny_tensors())
    twin = write_folder(tmp_path / "twin", tiny_config(), source.twin)
    tokens = greedy_tokens(source.folder, num_steps=2)
    assert tokens == greedy_tokens(twin, num_steps=2)
    assert [len(generated) for generated in tokens] == [16, 16]


def test_layout_says_why(tmp_path):
    source = written(tmp_path, "release", tiny_config(), tiny_tensors())
    text = str(Checkpoint.open(source.folder).layout)
    assert "layers.0.attn.wq_a.weight is F8_E4M3 with F8_E8M0 scales" in text
    assert ".w1.weight is I8 with F8_E8M0 scales" in text
    source = written(tmp_path, "modelslim", tiny_config(), tiny_tensors())
    assert "quant_model_description.json" in str(Checkpoint.open(source.folder).layout)


def test_mixture_is_told_by_counts(tmp_path):
    """fp8 dense matrices, int8 experts: neither is left out, and no description makes it ModelSlim."""
    release, compressed = layouts.release(tiny_tensors())[0], layouts.compressed_tensors(tiny_tensors())[0]
    experts = {name: tensor for name, tensor in compressed.items() if ".ffn.experts." in name}
    mixed = {name: tensor for name, tensor in release.items() if name not in experts} | experts
    config = tiny_config() | {"quantization_config": layouts.QUANTIZATION_CONFIG}
    folder = layouts.write_sharded(tmp_path, config, mixed)
    (folder / "quant_model_description.json").write_text("{}")
    with pytest.raises(CheckpointError, match="quantisation not supported"):
        Checkpoint.open(folder)
    (folder / "quant_model_description.json").unlink()
    layout = Checkpoint.open(folder).layout
    assert layout.storage == "int8 with a scale per row and fp8 with 128 x 128 blocks"
    # Three layers of six experts with three matrices in the Target, one such layer in NextN.
    target, draft = layout.storage_evidence.split("; draft ")
    assert target.startswith("Target 54 int8_row: ") and draft.startswith("18 int8_row: ")
    assert "fp8_block: layers.0.attn.wq_a.weight is F8_E4M3" in target


def test_description_without_quantised_tensors_is_no_modelslim(tmp_path):
    folder = write_folder(tmp_path, tiny_config(), tiny_tensors())
    (folder / "quant_model_description.json").write_text("{}")
    assert Checkpoint.open(folder).layout.storage == "not quantised"


def test_draft_folder_of_another_form_is_told(tmp_path):
    target = write_folder(tmp_path / "plain", tiny_config(), without_nextn(tiny_tensors()))
    draft = written(tmp_path, "modelslim", tiny_config(), tiny_tensors()).folder
    layout = Checkpoint.open(target, draft).layout
    assert layout.storage == "not quantised; draft ModelSlim W8A8"


def test_sources_name_codes_and_scales(tmp_path):
    source = written(tmp_path, "release", tiny_config(), tiny_tensors())
    checkpoint = Checkpoint.open(source.folder)
    entries = pack_weights(
        checkpoint, packed_weights(checkpoint.config, True), torch.float32, tmp_path / "weights"
    )
    by_name = {entry["name"]: entry for entry in entries}
    names = [name for _, name, _ in by_name["mtp.0.e_proj.weight"]["source"]]
    assert names == ["mtp.0.e_proj.weight", "mtp.0.e_proj.scale"]
    recorded = sorted(name for entry in entries for _, name, _ in entry["source"])
    index = json.loads((source.folder / "model.safetensors.index.json").read_text())
    assert recorded == sorted(index["weight_map"])


def damaged(tmp_path: Path, layout: str, change) -> CheckpointError:
    """Write a layout whose tensors (and description) `change` has altered, and read all of it."""
    if layout == "modelslim":
        tensors, _, description = layouts.modelslim(tiny_tensors())
        change(tensors, description)
        folder = layouts.write_modelslim(tmp_path, tiny_config(), tensors, description)
    else:
        tensors, _ = getattr(layouts, layout)(tiny_tensors())
        change(tensors)
        folder = layouts.write_sharded(tmp_path, tiny_config(), tensors)
    with pytest.raises(CheckpointError) as caught:
        checkpoint = Checkpoint.open(folder)
        load_weights(checkpoint, packed_weights(checkpoint.config, True), torch.float32)
    assert "\n" not in str(caught.value)
    return caught.value


def ue8m0(*shape: int, code: int = 127) -> torch.Tensor:
    return torch.full(shape, code, dtype=torch.uint8).view(torch.float8_e8m0fnu)


WQ_A = "layers.1.attn.wq_a"
EXPERT = "layers.2.ffn.experts.3.w2"
UP = "layers.2.ffn.experts.3.w1"


@pytest.mark.parametrize(
    ("change", "message", "key"),
    [
        (lambda t: t.pop(f"{WQ_A}.scale"), "quantised tensor without its scale", f"{WQ_A}.weight"),
        (
            lambda t: t.update({f"{WQ_A}.weight_scale": ue8m0(1, 1)}),
            "two scales for one weight",
            f"{WQ_A}.weight",
        ),
        (lambda t: t.update({f"{WQ_A}.scale": ue8m0(1, 2)}), "wrong tensor shape", f"{WQ_A}.scale"),
        (lambda t: t.update({f"{WQ_A}.scale": torch.ones(1, 1)}), "wrong tensor dtype", f"{WQ_A}.scale"),
        (
            lambda t: t.update({f"{UP}.scale": t[f"{UP}.scale"].float()}),
            "wrong tensor dtype",
            f"{UP}.scale",
        ),
        (
            lambda t: t.update({f"{UP}.scale": t[f"{UP}.scale"].view(torch.uint8)}),
            "wrong tensor dtype",
            f"{UP}.scale",
        ),
        (
            lambda t: t.update({f"{WQ_A}.scale": ue8m0(1, 1, code=255)}),
            "scale is not a number",
            f"{WQ_A}.scale",
        ),
        (
            lambda t: t.update({f"{WQ_A}.weight": t[f"{WQ_A}.weight"].to(torch.float8_e5m2)}),
            "wrong tensor dtype",
            f"{WQ_A}.weight",
        ),
        (lambda t: t.update({f"{EXPERT}.scale": ue8m0(64, 2)}), "wrong tensor shape", f"{EXPERT}.scale"),
        (
            lambda t: t.update({f"{EXPERT}.weight": torch.zeros(64, 32, dtype=torch.int8)}),
            "wrong tensor shape",
            f"{EXPERT}.weight",
        ),
        (
            lambda t: t.update({"layers.1.attn_norm.scale": ue8m0(1, 1)}),
            "unexpected tensor",
            "layers.1.attn_norm.scale",
        ),
        (
            lambda t: t.update({"norm.weight": t["norm.weight"].to(torch.float8_e4m3fn)}),
            "wrong tensor dtype",
            "norm.weight",
        ),
    ],
)
def test_damaged_release_is_refused_by_name(tmp_path, change, message, key):
    error = damaged(tmp_path, "release", change)
    assert (error.message, error.key) == (message, key)


@pytest.mark.parametrize(
    ("change", "message", "key"),
    [
        (
            lambda t, d: d.update({f"{WQ_A}.weight": "FLOAT"}),
            "the description contradicts the tensor",
            f"{WQ_A}.weight",
        ),
        (
            lambda t, d: d.update({"layers.0.attn.wo_a.weight": "W8A8_DYNAMIC"}),
            "the description contradicts the tensor",
            "layers.0.attn.wo_a.weight",
        ),
        (
            lambda t, d: d.update({f"{WQ_A}.weight": "W4A8_DYNAMIC"}),
            "quantisation not supported",
            f"{WQ_A}.weight",
        ),
        (lambda t, d: d.pop(f"{WQ_A}.weight"), "quantisation not supported", f"{WQ_A}.weight"),
        (
            lambda t, d: t[f"{WQ_A}.weight_offset"].fill_(1),
            "asymmetric quantisation is not supported",
            f"{WQ_A}.weight_offset",
        ),
        (
            lambda t, d: t[f"{WQ_A}.weight_scale"].fill_(torch.inf),
            "scale is not a number",
            f"{WQ_A}.weight_scale",
        ),
        (
            lambda t, d: t.update({f"{WQ_A}.weight_scale": ue8m0(*t[f"{WQ_A}.weight_scale"].shape)}),
            "wrong tensor dtype",
            f"{WQ_A}.weight_scale",
        ),
        (
            lambda t, d: t.update({f"{WQ_A}.weight_scale": torch.ones(1, 32)}),
            "wrong tensor shape",
            f"{WQ_A}.weight_scale",
        ),
    ],
)
def test_damaged_modelslim_export_is_refused_by_name(tmp_path, change, message, key):
    error = damaged(tmp_path, "modelslim", change)
    assert (error.message, error.key) == (message, key)


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"optional": {"quarot": {"rotation_map": {"global": "quarot.safetensors"}}}}, "optional.quarot"),
        ({"optional.quarot": "rotations.safetensors"}, "optional.quarot"),
        ({"optional.quarot.global_rotation": "FLOAT"}, "optional.quarot.global_rotation"),
        ({"optional.quarot.rotation": "W8A8_DYNAMIC"}, "optional.quarot.rotation"),
        ({"metadata": {"use_quarot": True}}, "metadata.use_quarot"),
        ({"metadata": [{"quarot": True}]}, "metadata[0].quarot"),
        ({"model_quant_type": "W8A8_DYNAMIC_QUAROT"}, "model_quant_type"),
    ],
)
def test_rotated_export_is_refused(tmp_path, metadata, key):
    error = damaged(tmp_path, "modelslim", lambda tensors, description: description.update(metadata))
    assert "rotated (QuaRot)" in error.message
    assert error.key == key


@pytest.mark.parametrize(
    "metadata",
    [
        {"use_quarot": False},
        {"quarot": {"enabled": False, "maps": []}},
        *({"quarot": off} for off in ({}, [], None, 0, "", "none", "False", "off")),
    ],
    ids=str,
)
def test_rotation_that_is_off_is_no_rotation(tmp_path, metadata):
    tensors, _, description = layouts.modelslim(tiny_tensors())
    description |= {"metadata": metadata}
    folder = layouts.write_modelslim(tmp_path, tiny_config(), tensors, description)
    assert Checkpoint.open(folder).has_nextn


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        ({"quant_method": "ascend", "quarot": {"enable": True}}, "quantization_config.quarot"),
        ({"quant_method": "quarot"}, "quantization_config.quant_method"),
    ],
)
def test_rotation_that_the_config_states(tmp_path, declared, key):
    config = tiny_config() | {"quantization_config": declared}
    with pytest.raises(CheckpointError, match="rotated") as caught:
        Checkpoint.open(write_folder(tmp_path, config, tiny_tensors()))
    assert (caught.value.file, caught.value.key) == (str(tmp_path / "config.json"), key)


@pytest.mark.parametrize("name", ["optional/quarot.safetensors", "global_QuaRot.safetensors"])
def test_rotation_matrices_in_the_folder(tmp_path, name):
    """Whatever the description says, or where there is none."""
    folder = write_folder(tmp_path, tiny_config(), tiny_tensors())
    (folder / "optional").mkdir()
    (folder / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match="rotated") as caught:
        Checkpoint.open(folder)
    assert caught.value.file == str(folder / name)


def test_draft_of_another_layout(tmp_path):
    """A plain Target with the quantised draft of the release: each tensor is read as it is stored."""
    quantised, twin = layouts.release(tiny_tensors())
    draft = {name: tensor for name, tensor in quantised.items() if name.startswith("mtp.")}
    mixed = without_nextn(twin) | draft
    folder = layouts.write_sharded(tmp_path / "mixed", tiny_config(), mixed)
    twin_folder = write_folder(tmp_path / "twin", tiny_config(), twin)
    for dtype in (torch.float32, torch.bfloat16):
        found = packed_bytes(folder, tmp_path / "a", dtype)
        assert found == packed_bytes(twin_folder, tmp_path / "b", dtype)
