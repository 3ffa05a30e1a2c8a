"""The packed weight table against the release's published census and against tiny checkpoints."""

from collections import Counter

import pytest

from nextn.weights import packed_weights
from nextn.weights.config_json import parse_model_config
from tests.graphs.releases import flash_config, pro_config
from tests.oracles.synthetic import CASES, random_weights


def part_names(config: dict, with_nextn: bool) -> list[str]:
    model_config, _ = parse_model_config(config, "config.json")
    return [part.name for weight in packed_weights(model_config, with_nextn) for part in weight.parts]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_parts_are_the_checkpoint_exactly_once(case):
    model_config, _ = parse_model_config(case.config, "config.json")
    weights = packed_weights(model_config, with_nextn=True)
    parts = Counter(part.name for weight in weights for part in weight.parts)
    shapes = {part.name: part.shape for weight in weights for part in weight.parts}
    tensors = random_weights(case.config, seed=0)
    assert set(parts.values()) == {1}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("config", "tensors_with_scales", "nextn_with_scales"),
    [(flash_config(), 69187, 1575), (pro_config(), 145116, 2343)],
    ids=["flash", "pro"],
)
def test_census_of_the_releases(config, tensors_with_scales, nextn_with_scales):
    """The release counts one more tensor, `.scale`, per quantised matrix; those are known by kind."""
    experts, ratios = config["n_routed_experts"], config["compress_ratios"]
    scales_per_layer = 5 + 3 * experts + 3  # attention, routed experts, shared expert
    indexers = ratios.count(4)
    nextn_scales = scales_per_layer + 2  # e_proj and h_proj
    layers = config["num_hidden_layers"]
    names = part_names(config, with_nextn=True)
    nextn_names = [name for name in names if name.startswith("mtp.0.")]
    assert len(nextn_names) == nextn_with_scales - nextn_scales
    assert len(names) == tensors_with_scales - layers * scales_per_layer - indexers - nextn_scales
    assert [name for name in names if name not in nextn_names] == part_names(config, with_nextn=False)


def test_release_shapes():
    model_config, _ = parse_model_config(flash_config(), "config.json")
    weights = {weight.name: weight for weight in packed_weights(model_config, with_nextn=True)}
    expected = {
        "embed.weight": ("matrix", (129280, 4096)),
        "head.weight": ("float32", (129280, 4096)),
        "hc_head_fn": ("float32", (4, 16384)),
        "layers.2.attn.wq_b.weight": ("matrix", (32768, 1024)),
        "layers.2.attn.wo_a.weight": ("matrix", (8192, 4096)),
        "layers.2.attn.wo_b.weight": ("matrix", (4096, 8192)),
        "layers.2.attn.compressor.wkv_gate.weight": ("float32", (2048, 4096)),
        "layers.3.attn.compressor.wkv_gate.weight": ("float32", (1024, 4096)),
        "layers.2.attn.compressor.ape": ("float32", (4, 1024)),
        "layers.3.attn.compressor.ape": ("float32", (128, 512)),
        "layers.2.attn.indexer.wq_b.weight": ("matrix", (8192, 1024)),
        "layers.2.attn.indexer.weights_proj.weight": ("matrix", (64, 4096)),
        "layers.2.attn.indexer.compressor.wkv_gate.weight": ("float32", (512, 4096)),
        "layers.0.hc_attn_fn": ("float32", (24, 16384)),
        "layers.0.ffn.gate.tid2eid": ("index", (129280, 6)),
        "layers.3.ffn.gate.bias": ("float32", (256,)),
        "layers.0.ffn.experts.w13.weight": ("matrix", (256, 4096, 4096)),
        "layers.0.ffn.experts.w2.weight": ("matrix", (256, 4096, 2048)),
        "layers.0.ffn.shared_experts.w13.weight": ("matrix", (4096, 4096)),
        "mtp.0.e_proj.weight": ("matrix", (4096, 4096)),
        "mtp.0.ffn.gate.bias": ("float32", (256,)),
        "mtp.0.hc_head_scale": ("float32", (1,)),
    }
    assert {name: (weights[name].role, weights[name].shape) for name in expected} == expected
    assert "mtp.0.ffn.gate.tid2eid" not in weights
    assert "mtp.0.attn.compressor.ape" not in weights
    assert "layers.3.attn.indexer.wq_b.weight" not in weights


def test_two_shared_experts_are_one_wide_one():
    config = flash_config() | {"n_shared_experts": 2}
    model_config, _ = parse_model_config(config, "config.json")
    weights = {weight.name: weight.shape for weight in packed_weights(model_config, with_nextn=False)}
    assert weights["layers.0.ffn.shared_experts.w13.weight"] == (8192, 4096)
    assert weights["layers.0.ffn.shared_experts.w2.weight"] == (4096, 4096)
