"""`Compressor` as a function: the package's changes its state in place, which in GE IR is an output too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nextn.compile.targets.ascend.custom_ops.declared import Declared, Options, attributes, options_schema

_INPUTS = (
    "x",
    "wkv",
    "wgate",
    "state_cache",
    "ape",
    "norm_weight",
    "rope_sin",
    "rope_cos",
    "state_block_table",
    "cu_seqlens",
    "seqused",
    "start_pos",
)
"""In the order of GE's definition."""

_FED = tuple(name for name in _INPUTS if name != "cu_seqlens")
"""Rows of equal number a request, `[B, S, H]`, have no lengths to add up."""

_OPTIONS: Options = {
    "rope_head_dim": 64,
    "cmp_ratio": 4,
    "coff": 1,
    "norm_eps": 1e-6,
    "rotary_mode": 1,
    "cache_mode": 1,
}


def _shapes(*tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    given = dict(zip(_FED, tensors, strict=True))
    batch, rows, _ = given["x"].shape
    entries = -(-rows // given["ape"].shape[0])
    width = given["norm_weight"].shape[0]
    return given["x"].new_empty((batch, entries, width)), torch.empty_like(given["state_cache"])


OPERATORS = (
    Declared(
        "nextn_npu",
        "compressor",
        f"(Tensor {', Tensor '.join(_FED)}, *, {options_schema(_OPTIONS)}) -> (Tensor, Tensor)",
        _shapes,
    ),
)


def register_converters() -> None:
    from torchair import register_fx_node_ge_converter
    from torchair.ge import attr, custom_op

    @register_fx_node_ge_converter(torch.ops.nextn_npu.compressor.default)
    def compressor(*tensors: Any, meta_outputs: Any = None, **options: Any) -> Any:
        given = dict(zip(_FED, tensors, strict=True))
        _, block, channels = given["state_cache"].symsize
        stride = {"state_cache_stride_dim0": attr.Int(int(block) * int(channels))}
        return custom_op(
            "Compressor",
            inputs={name: given.get(name) for name in _INPUTS},
            attrs={**attributes(_OPTIONS, options), **stride},
            outputs=["cmp_kv", "state_cache"],
        )
