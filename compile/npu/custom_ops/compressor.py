"""`Compressor` as a function: the package's changes its state in place, which in GE IR is an output too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nextn.compile.npu.custom_ops.declared import Declared


def _shapes(
    x: Tensor,
    wkv: Tensor,
    wgate: Tensor,
    state_cache: Tensor,
    ape: Tensor,
    norm_weight: Tensor,
    *rest: Any,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    batch, rows, _ = x.shape
    blocks = -(-rows // ape.shape[0])
    return x.new_empty((batch, blocks, norm_weight.shape[0])), torch.empty_like(state_cache)


OPERATORS = (
    Declared(
        "nextn_npu",
        "compressor",
        "(Tensor x, Tensor wkv, Tensor wgate, Tensor state_cache, Tensor ape, Tensor norm_weight, "
        "Tensor rope_sin, Tensor rope_cos, Tensor state_block_table, Tensor seqused, Tensor start_pos, *, "
        "int rope_head_dim, int cmp_ratio, int coff, float norm_eps, int rotary_mode, int cache_mode) "
        "-> (Tensor, Tensor)",
        _shapes,
    ),
)


def register_converters() -> None:
    from torchair import register_fx_node_ge_converter
    from torchair.ge import attr, custom_op

    @register_fx_node_ge_converter(torch.ops.nextn_npu.compressor.default)
    def compressor(
        x: Any,
        wkv: Any,
        wgate: Any,
        state_cache: Any,
        ape: Any,
        norm_weight: Any,
        rope_sin: Any,
        rope_cos: Any,
        state_block_table: Any,
        seqused: Any,
        start_pos: Any,
        *,
        rope_head_dim: int,
        cmp_ratio: int,
        coff: int,
        norm_eps: float,
        rotary_mode: int,
        cache_mode: int,
        meta_outputs: Any = None,
    ) -> Any:
        _, block, channels = state_cache.symsize
        return custom_op(
            "Compressor",
            inputs={
                "x": x,
                "wkv": wkv,
                "wgate": wgate,
                "state_cache": state_cache,
                "ape": ape,
                "norm_weight": norm_weight,
                "rope_sin": rope_sin,
                "rope_cos": rope_cos,
                "state_block_table": state_block_table,
                "cu_seqlens": None,
                "seqused": seqused,
                "start_pos": start_pos,
            },
            attrs={
                "rope_head_dim": attr.Int(rope_head_dim),
                "cmp_ratio": attr.Int(cmp_ratio),
                "coff": attr.Int(coff),
                "norm_eps": attr.Float(norm_eps),
                "rotary_mode": attr.Int(rotary_mode),
                "cache_mode": attr.Int(cache_mode),
                "state_cache_stride_dim0": attr.Int(int(block) * int(channels)),
            },
            outputs=["cmp_kv", "state_cache"],
        )
