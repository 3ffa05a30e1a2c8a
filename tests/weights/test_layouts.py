"""Every published naming of the same tensors packs to the same bytes."""

import json

import pytest
import torch
from safetensors.torch import load_file

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights import Checkpoint, load_weights, pack_weights, packed_weights
from tests.weights.eager_tokens import greedy_tokens
from tests.weights.folders import tiny_config, tiny_tensors, without_nextn, write_folder, write_shards


def packed_bytes(folder, out, with_nextn):
    checkpoint = Checkpoint.open(folder)
    pack_weights(checkpoint, packed_weights(checkpoint.config, with_nextn), torch.bfloat16, out)
    return out.read_bytes()


@pytest.mark.parametrize(
    ("form", "layout", "sign"),
    [
        ("default", "Hugging Face default-save names", "embed_tokens"),
        ("native", "Hugging Face names", "self_attn"),
    ],
)
def test_hugging_face_saves_pack_like_the_original(
    original, hugging_face_saves, tmp_path, form, layout, sign
):
    """transformers 5.24 writes two spellings of names and config, neither of them the release's."""
    checkpoint = Checkpoint.open(hugging_face_saves[form])
    assert checkpoint.layout.name == layout
    assert sign in checkpoint.layout.evidence
    assert not checkpoint.has_nextn
    assert checkpoint.config.compress_ratios == (0, 4, 128)
    expected = packed_bytes(original, tmp_path / "original", with_nextn=False)
    assert packed_bytes(hugging_face_saves[form], tmp_path / "saved", with_nextn=False) == expected
    assert greedy_tokens(hugging_face_saves[form], num_steps=0) == greedy_tokens(original, num_steps=0)


@pytest.mark.parametrize("form", ["default", "native"])
def test_hugging_face_save_with_its_draft_put_back(original, hugging_face_saves, tmp_path, form):
    """The draft of the release as a sidecar to a re-saved Target, named by the index.

    https://github.com/jundot/omlx/issues/2062
    """
    saved = hugging_face_saves[form]
    draft = {name: tensor for name, tensor in tiny_tensors().items() if name.startswith("mtp.")}
    shards = {"model.safetensors": load_file(saved / "model.safetensors"), "mtp.safetensors": draft}
    folder = write_shards(tmp_path / "both", json.loads((saved / "config.json").read_text()), shards)
    expected = packed_bytes(original, tmp_path / "original", with_nextn=True)
    assert packed_bytes(folder, tmp_path / "packed", with_nextn=True) == expected
    assert greedy_tokens(folder, num_steps=2) == greedy_tokens(original, num_steps=2)


def test_stray_model_prefix(original, tmp_path):
    """https://github.com/vllm-project/vllm/issues/16450"""
    prefixed = {f"model.{name}": tensor for name, tensor in tiny_tensors().items()}
    folder = write_folder(tmp_path / "prefixed", tiny_config(), prefixed)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.has_nextn
    assert checkpoint.layout.name == "original names with a model. prefix"
    assert checkpoint.layout.evidence in prefixed
    expected = packed_bytes(original, tmp_path / "a", with_nextn=True)
    assert packed_bytes(folder, tmp_path / "b", with_nextn=True) == expected


def test_two_namings_are_mixed(tmp_path):
    tensors = tiny_tensors()
    tensors["layers.0.self_attn.sinks"] = tensors.pop("layers.0.attn.attn_sink")
    layout = Checkpoint.open(write_folder(tmp_path, tiny_config(), tensors)).layout
    assert layout.name == "mixed names, draft in original names"
    assert "layers.0.self_attn.sinks and " in layout.evidence


def test_original_layout_is_named(original):
    checkpoint = Checkpoint.open(original)
    assert checkpoint.layout.name == "original names"
    assert checkpoint.has_nextn
    assert checkpoint.warnings == ()


def test_copies_alone_are_no_draft(tmp_path):
    tensors = without_nextn(tiny_tensors())
    tensors["mtp.0.head.weight"] = tensors["head.weight"].clone()
    assert not Checkpoint.open(write_folder(tmp_path, tiny_config(), tensors)).has_nextn


def test_two_names_for_one_weight(tmp_path):
    tensors = tiny_tensors()
    tensors["model.norm.weight"] = tensors["norm.weight"].clone()
    with pytest.raises(CheckpointError, match="two tensors for one weight") as caught:
        Checkpoint.open(write_folder(tmp_path, tiny_config(), tensors))
    assert caught.value.key == "norm.weight"


@pytest.mark.parametrize("shape", [(6, 63, 64), (5, 64, 64), (384, 64)], ids=str)
def test_stacked_experts_of_another_shape(hugging_face_saves, tmp_path, shape):
    saved = hugging_face_saves["native"]
    tensors = load_file(saved / "model.safetensors")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    tensors[name] = torch.zeros(shape)
    config = json.loads((saved / "config.json").read_text())
    with pytest.raises(CheckpointError, match="wrong tensor shape") as caught:
        Checkpoint.open(write_folder(tmp_path / "bad", config, tensors))
    assert caught.value.key == name
    assert caught.value.found == list(shape)


def test_stacked_experts_keep_their_order(hugging_face_saves):
    """Gate rows come before up rows in every expert, as in `w13`."""
    checkpoint = Checkpoint.open(hugging_face_saves["native"])
    weights = load_weights(checkpoint, packed_weights(checkpoint.config, False), torch.float32)
    tensors = tiny_tensors()
    for expert in range(6):
        prefix = f"layers.2.ffn.experts.{expert}"
        expected = torch.cat([tensors[f"{prefix}.w1.weight"], tensors[f"{prefix}.w3.weight"]])
        assert torch.equal(weights["layers.2.ffn.experts.w13.weight"][expert], expected)
        assert torch.equal(weights["layers.2.ffn.experts.w2.weight"][expert], tensors[f"{prefix}.w2.weight"])
