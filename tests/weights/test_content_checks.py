"""What a config or a description says of the stored form, against what the tensors are."""

import pytest

from nextn.weights import Checkpoint
from nextn.weights.content_checks import stated_layout_warning
from tests.oracles import published_layouts as layouts
from tests.weights.folders import tiny_config, tiny_tensors, write_folder

FP8 = layouts.QUANTIZATION_CONFIG


def warned(folder) -> str | None:
    checkpoint = Checkpoint.open(folder)
    warning = stated_layout_warning(checkpoint)
    assert warning is None or warning.endswith(": taken as stored")
    return warning


def release(folder, **config):
    tensors, _ = layouts.release(tiny_tensors())
    return layouts.write_sharded(folder, tiny_config() | {"quantization_config": FP8} | config, tensors)


def modelslim(folder, config=None, **description):
    tensors, _, described = layouts.modelslim(tiny_tensors())
    return layouts.write_modelslim(folder, tiny_config() | (config or {}), tensors, described | description)


@pytest.mark.parametrize("layout", sorted(set(layouts.LAYOUTS) - {"release with fp8 experts"}))
def test_published_layouts_say_what_they_are(tmp_path, layout):
    layouts.write_layout(tmp_path / "source", layout, tiny_config(), tiny_tensors())
    assert warned(tmp_path / "source") is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "quant_method compressed-tensors"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method gptq"),
        ({"quantization_config": {"quant_method": 5}}, "quant_method 5"),
        ({"quantization_config": FP8 | {"fmt": "e5m2"}}, "fmt e5m2"),
        ({"quantization_config": FP8 | {"weight_block_size": [32, 32]}}, "weight_block_size [32, 32]"),
        ({"quantization_config": FP8 | {"weight_block_size": 128}}, "weight_block_size 128"),
        ({"expert_dtype": "fp8"}, "expert_dtype fp8"),
        ({"quantization_config": FP8 | {"expert_dtype": "fp8"}}, "expert_dtype fp8"),
        ({"expert_dtype": "bf16"}, "expert_dtype bf16"),
    ],
    ids=str,
)
def test_release_with_another_config(tmp_path, config, said):
    warning = warned(release(tmp_path, **config))
    assert warning == (
        f"{tmp_path}: config.json says {said}, but the tensors are "
        "fp8 with 128 x 128 blocks and mxfp4 in groups of 32: taken as stored"
    )


def test_several_contradictions_are_one_line(tmp_path):
    stated = {"quant_method": "gptq", "fmt": "e5m2"}
    warning = warned(release(tmp_path, quantization_config=stated, expert_dtype="fp8"))
    assert all(text in warning for text in ("quant_method gptq", "fmt e5m2", "expert_dtype fp8"))


@pytest.mark.parametrize("stated", [None, [1], {}, {"quant_method": None}, {"fmt": "e4m3"}], ids=str)
def test_a_config_that_says_nothing_contradicts_nothing(tmp_path, stated):
    assert warned(release(tmp_path, quantization_config=stated)) is None


def test_plain_tensors_under_a_config_of_quantised_ones(tmp_path):
    """A dequantised re-save keeps the config of its source."""
    config = tiny_config() | {"quantization_config": FP8, "expert_dtype": "fp4"}
    warning = warned(write_folder(tmp_path, config, tiny_tensors()))
    assert "quant_method fp8, expert_dtype fp4, but the tensors are float32" in warning


def test_modelslim_under_another_config(tmp_path):
    warning = warned(modelslim(tmp_path, {"quantization_config": {"quant_method": "gptq"}}))
    assert "quant_method gptq, but the tensors are ModelSlim W8A8" in warning


def test_description_of_other_weights(tmp_path):
    absent = {"layers.9.attn.wq_a.weight": "W8A8_DYNAMIC", "layers.9.attn.wo_a.weight": "FLOAT"}
    warning = warned(modelslim(tmp_path / "more", **absent))
    assert "describes 2 tensors that do not exist, first layers.9.attn.wq_a.weight" in warning
    warning = warned(modelslim(tmp_path / "kind", model_quant_type="W4A8_DYNAMIC"))
    assert "says model_quant_type W4A8_DYNAMIC, but the tensors are ModelSlim W8A8" in warning


@pytest.mark.parametrize("kind", ["W8A8_DYNAMIC", "W4A8", "FLOAT"])
def test_description_beside_plain_tensors(tmp_path, kind):
    folder = write_folder(tmp_path, tiny_config(), tiny_tensors())
    (folder / "quant_model_description.json").write_text(f'{{"model_quant_type": "{kind}"}}')
    said = f"model_quant_type {kind}, but the tensors are float32"
    assert warned(folder) is None if kind == "FLOAT" else said in warned(folder)
