"""Which fused op every operator is given in each model, and why not another."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nextn.weights
from nextn.compile.build.trace import TracedGraph, trace
from nextn.compile.cli.trace_report import fake_model
from nextn.compile.targets.ascend.custom_ops import declare_custom_ops
from nextn.compile.targets.ascend.fused_ops import CUSTOM_OPS, FUSED_OPS, offered, reads_blocks, uncalled
from nextn.compile.targets.ascend.requirements import import_torch_npu
from nextn.compile.targets.functional import functionalize
from nextn.compile.targets.fused_op import FusedOpChoice
from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.operator import OPERATORS, short_name
from nextn.graphs.session_shape import SessionShape
from nextn.weights.config_json import parse_model_config
from tests.graphs.releases import flash_config, pro_config
from tests.oracles.synthetic import CASES

EVERYWHERE = {
    "unit_rms": "npu_rms_norm",
    "rms_norm": "npu_rms_norm",
    "apply_rope": "npu_rotary_mul",
    "score_route": "npu_moe_gating_top_k",
    "hash_route": "npu_moe_gating_top_k",
    "expert_mlp": "npu_grouped_matmul",
    "clamped_swiglu": "npu_clipped_swiglu",
}
"""No guard of these fails in a published or bundled model, in either dtype."""

PLAIN_ATTENTION = {"window_attention": "plain", "compress": "plain", "indexer_topk": "plain"}
FUSED_ATTENTION = {
    "window_attention": "npu_sparse_attn_sharedkv",
    "compress": "npu_compressor",
    "indexer_topk": "npu_lightning_indexer",
}
PRO_ATTENTION = {"window_attention": "npu_sparse_attn_sharedkv, plain"}
"""Its C4 layers choose 1024 entries."""
MHC = {"hyper_pre": "npu_mhc_pre", "hyper_post": "npu_mhc_post", "sinkhorn": "npu_mhc_sinkhorn"}
MHC_WITHOUT_SINKHORN = {"hyper_pre": "npu_mhc_pre", "hyper_post": "npu_mhc_post"}
HC = {"hyper_pre": "npu_hc_pre", "hyper_post": "npu_hc_post"}
NO_STREAMS = {"hyper_pre": "plain", "hyper_post": "plain", "sinkhorn": "npu_mhc_sinkhorn"}


def demo_config() -> dict[str, Any]:
    return json.loads((Path(nextn.weights.__path__[0]) / "demo" / "config.json").read_text())


CONFIGS = {
    "tiny": CASES["tiny"].config,
    "demo": demo_config(),
    "flash": flash_config(),
    "pro": pro_config(),
    "unnormed": CASES["tiny"].config | {"norm_topk_prob": False},
}


def two_layers(config: ModelConfig) -> ModelConfig:
    """Fused ops depend on widths, not on how many layers have them: one routes by token, one by score."""
    return replace(config, compress_ratios=(0, 4), num_hash_layers=1)


@functools.cache
def traced(name: str, dtype: str, blocks: bool) -> TracedGraph:
    parsed, _ = parse_model_config(CONFIGS[name], "config.json")
    # Entries that the indexers of the releases choose among.
    shape = SessionShape(
        two_layers(parsed), dtype, 0, max_seq_len=8192, entry_rows_multiples=(16, 128) if blocks else (1,)
    )
    with torch.no_grad():
        return trace("decode", 1, *fake_model(shape), shape)


def choose(name: str, dtype: str, custom: tuple[str, ...]) -> FusedOpChoice:
    import_torch_npu()
    declare_custom_ops()
    choice = FusedOpChoice(offered(custom))
    functionalize(traced(name, dtype, reads_blocks(custom)), choice.functions())
    return choice


def model(name: str, dtype: str, custom: tuple[str, ...], expected: dict[str, str], **marks: Any) -> Any:
    return pytest.param(name, dtype, custom, expected, **marks)


full = {"marks": pytest.mark.full}


@pytest.mark.parametrize(
    ("name", "dtype", "custom", "expected"),
    [
        model("tiny", "float32", (), {}, **full),
        model("demo", "bfloat16", (), {}),
        model("demo", "bfloat16", ("MhcPre", "MhcPost", "MhcSinkhorn"), MHC, **full),
        model("demo", "bfloat16", ("HcPre", "HcPost"), {"hyper_pre": "plain", "hyper_post": "plain"}, **full),
        model("demo", "float32", CUSTOM_OPS, NO_STREAMS | PLAIN_ATTENTION, **full),
        model("flash", "bfloat16", (), {}),
        model("flash", "bfloat16", CUSTOM_OPS, HC | FUSED_ATTENTION),
        model("pro", "bfloat16", (), {}, **full),
        model("pro", "bfloat16", CUSTOM_OPS, HC | FUSED_ATTENTION | PRO_ATTENTION, **full),
        model("pro", "bfloat16", ("MhcPre", "MhcPost"), MHC_WITHOUT_SINKHORN, **full),
    ],
)
def test_fused_ops_of_models(
    name: str, dtype: str, custom: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert choose(name, dtype, custom).recorded() == EVERYWHERE | expected


def test_what_kept_a_fused_op_away_is_told() -> None:
    choice = choose("unnormed", "float32", CUSTOM_OPS)
    assert choice.faults["hyper_pre"] == {
        "npu_hc_pre takes bfloat16 streams",
        "npu_mhc_pre takes bfloat16 streams",
    }
    assert choice.recorded()["score_route"] == "plain"
    assert choice.faults["score_route"] == {"npu_moe_gating_top_k takes weights of sum 1 (norm_topk_prob)"}


def test_fused_ops_are_offered_for_operators_that_exist() -> None:
    known = {short_name(operator) for operator in OPERATORS} - {"sample_token", "topk_entries"}
    assert {short_name(operator) for operator in FusedOpChoice(FUSED_OPS).functions()} == known


def attention_call(**changes: Any) -> tuple[Any, ...]:
    """A call that the fused op takes, of a C128 layer, but for `changes`."""
    given = {"dtype": torch.bfloat16, "heads": 64, "width": 512, "window": 128, "ratio": 128, "capacity": 16}
    given |= {"chosen": None} | changes
    query = torch.empty(1, 2, given["heads"], given["width"])
    keys = torch.empty(1, given["window"] + 1, given["width"], dtype=given["dtype"])
    chosen = None if given["chosen"] is None else torch.empty(1, 2, given["chosen"], dtype=torch.int64)
    row = torch.empty(1, dtype=torch.int64)
    entries = torch.empty(2 * given["capacity"], given["width"], dtype=given["dtype"])
    sink = torch.empty(given["heads"])
    return query, keys, row, row, sink, entries, row, chosen, given["ratio"], given["capacity"]


def compress_call(**changes: Any) -> tuple[Any, ...]:
    given = {"dtype": torch.bfloat16, "width": 512, "ratio": 128, "overlap": 1, "turning": 64, "hidden": 4096}
    given |= changes
    channels = given["overlap"] * given["width"]
    x = torch.empty(1, 2, given["hidden"], dtype=given["dtype"])
    angles = torch.empty(1, 1, given["turning"] // 2)
    row = torch.empty(1, dtype=torch.int64)
    weight, bias = torch.empty(2 * channels, given["hidden"]), torch.empty(given["ratio"], channels)
    earlier = torch.empty(1, given["overlap"] * given["ratio"] - 1, 2 * channels)
    norm = torch.empty(given["width"])
    return x, weight, bias, norm, earlier, row, row, angles, angles, given["ratio"], 1e-6


def choose_call(**changes: Any) -> tuple[Any, ...]:
    given = {"dtype": torch.bfloat16, "heads": 64, "width": 128, "topk": 512, "capacity": 640} | changes
    query, weight = torch.empty(1, 2, given["heads"], given["width"]), torch.empty(1, 2, given["heads"])
    entries = torch.empty(2 * given["capacity"], given["width"], dtype=given["dtype"])
    row, complete = torch.empty(1, dtype=torch.int64), torch.empty(1, 2, dtype=torch.int64)
    return query, weight, entries, row, complete, given["topk"], given["capacity"]


CALLS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "window_attention": attention_call,
    "compress": compress_call,
    "indexer_topk": choose_call,
}


@pytest.mark.parametrize(
    ("operator", "changes", "fault"),
    [
        ("window_attention", {}, None),
        ("window_attention", {"heads": 128}, None),
        ("window_attention", {"ratio": 4, "chosen": 512, "capacity": 640}, None),
        ("window_attention", {"ratio": 4, "capacity": 512}, None),
        ("window_attention", {"dtype": torch.float32}, "bfloat16"),
        ("window_attention", {"heads": 96}, "heads"),
        ("window_attention", {"width": 256}, "width 512"),
        ("window_attention", {"window": 127}, "window of 128"),
        ("window_attention", {"ratio": 8}, "ratio 4 or 128"),
        ("window_attention", {"capacity": 24}, "16 divides"),
        ("window_attention", {"ratio": 4, "chosen": 256, "capacity": 640}, "512 chosen"),
        ("window_attention", {"ratio": 4, "capacity": 640}, "512 chosen"),
        ("compress", {}, None),
        ("compress", {"ratio": 4, "overlap": 2}, None),
        ("compress", {"ratio": 4, "overlap": 2, "width": 128}, None),
        ("compress", {"dtype": torch.float32}, "bfloat16"),
        ("compress", {"width": 128}, "width 512"),
        ("compress", {"ratio": 8, "overlap": 2}, "width 512"),
        ("compress", {"turning": 32}, "64 channels"),
        ("compress", {"hidden": 4100}, "512 divides"),
        ("compress", {"hidden": 512}, "1024 to 10240"),
        ("compress", {"hidden": 10752}, "1024 to 10240"),
        ("indexer_topk", {}, None),
        ("indexer_topk", {"topk": 2048, "capacity": 4096}, None),
        ("indexer_topk", {"dtype": torch.float32}, "bfloat16"),
        ("indexer_topk", {"heads": 32}, "64 heads"),
        ("indexer_topk", {"width": 64}, "width 128"),
        ("indexer_topk", {"topk": 2049, "capacity": 4096}, "at most 2048"),
        ("indexer_topk", {"capacity": 1000}, "16 divides"),
    ],
)
def test_calls_that_a_fused_op_of_attention_takes(
    operator: str, changes: dict[str, Any], fault: str | None
) -> None:
    (fused,) = (fused for fused in FUSED_OPS if fused.operator == operator)
    found = fused.fault(*CALLS[operator](**changes))
    assert (found is None) == (fault is None) and (fault or "") in (found or "")


def test_operators_that_no_graph_calls_are_told() -> None:
    named = ("HcPre", "LightningIndexer", "MhcPre", "SparseAttnSharedkv")
    ops = {
        "hyper_pre": "npu_hc_pre",
        "window_attention": "plain, npu_sparse_attn_sharedkv",
        "compress": "plain",
    }
    assert uncalled(named, ops) == ["LightningIndexer", "MhcPre"]
    assert uncalled((), ops) == []
