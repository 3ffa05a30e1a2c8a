"""The package's operators of attention.

`SparseAttnSharedkv`, and `SparseAttnSharedkvMetadata` that divides its work among cores; and `Compressor` as
a function: the package's changes its state in place, which in GE IR is an output too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nextn.compile.targets.ascend.custom_ops import (
    Declared,
    Options,
    attributes,
    optional_tensors,
    options_schema,
)
from nextn.runtime.contract.errors import ExecutionError

_COMPRESSOR_INPUTS = (
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

_COMPRESSOR_FED = tuple(name for name in _COMPRESSOR_INPUTS if name != "cu_seqlens")
"""Rows of equal number a request, `[B, S, H]`, have no lengths to add up."""

_COMPRESSOR_OPTIONS: Options = {
    "rope_head_dim": 64,
    "cmp_ratio": 4,
    "coff": 1,
    "norm_eps": 1e-6,
    "rotary_mode": 1,
    "cache_mode": 1,
}


def _compressor_shapes(*tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    given = dict(zip(_COMPRESSOR_FED, tensors, strict=True))
    batch, rows, _ = given["x"].shape
    entries = -(-rows // given["ape"].shape[0])
    width = given["norm_weight"].shape[0]
    return given["x"].new_empty((batch, entries, width)), torch.empty_like(given["state_cache"])


_COMPRESSOR = (
    Declared(
        "nextn_npu",
        "compressor",
        f"(Tensor {', Tensor '.join(_COMPRESSOR_FED)}, *, {options_schema(_COMPRESSOR_OPTIONS)}) "
        "-> (Tensor, Tensor)",
        _compressor_shapes,
    ),
)


def _register_compressor() -> None:
    from torchair import register_fx_node_ge_converter
    from torchair.ge import attr, custom_op

    @register_fx_node_ge_converter(torch.ops.nextn_npu.compressor.default)
    def compressor(*tensors: Any, meta_outputs: Any = None, **options: Any) -> Any:
        given = dict(zip(_COMPRESSOR_FED, tensors, strict=True))
        _, block, channels = given["state_cache"].symsize
        stride = {"state_cache_stride_dim0": attr.Int(int(block) * int(channels))}
        return custom_op(
            "Compressor",
            inputs={name: given.get(name) for name in _COMPRESSOR_INPUTS},
            attrs={**attributes(_COMPRESSOR_OPTIONS, options), **stride},
            outputs=["cmp_kv", "state_cache"],
        )


METADATA_WORDS = 1024

_LENGTHS = ("cu_seqlens_q", "cu_seqlens_ori_kv", "cu_seqlens_cmp_kv", "seqused_q", "seqused_kv")

_CACHES = (
    "ori_kv",
    "cmp_kv",
    "ori_sparse_indices",
    "cmp_sparse_indices",
    "ori_block_table",
    "cmp_block_table",
)

_OPTIONAL = (*_CACHES, *_LENGTHS, "sinks", "metadata")
"""Inputs in the order of GE's definition."""

_READING: Options = {
    "ori_mask_mode": 4,
    "cmp_mask_mode": 3,
    "ori_win_left": 127,
    "ori_win_right": 0,
    "layout_q": "BSND",
    "layout_kv": "PA_ND",
}

_ATTENTION: Options = {"softmax_scale": 0.0, "cmp_ratio": 0, **_READING, "return_softmax_lse": False}

_METADATA: Options = {
    "batch_size": 0,
    "max_seqlen_q": 0,
    "max_seqlen_kv": 0,
    "ori_topk": 0,
    "cmp_topk": 0,
    "cmp_ratio": -1,
    **_READING,
    "has_ori_kv": True,
    "has_cmp_kv": True,
}


def _attention_shapes(q: Tensor, **_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty((0,), dtype=torch.float32)


def _metadata_shapes(num_heads_q: int, num_heads_kv: int, head_dim: int, **lengths: Any) -> Tensor:
    found = next(lengths[name] for name in _LENGTHS if lengths.get(name) is not None)
    return torch.empty((METADATA_WORDS,), dtype=torch.int32, device=found.device)


OPERATORS = (
    *_COMPRESSOR,
    Declared(
        "custom",
        "npu_sparse_attn_sharedkv",
        f"(Tensor q, *, {optional_tensors(_OPTIONAL)}, {options_schema(_ATTENTION)}) -> (Tensor, Tensor)",
        _attention_shapes,
    ),
    Declared(
        "custom",
        "npu_sparse_attn_sharedkv_metadata",
        f"(int num_heads_q, int num_heads_kv, int head_dim, *, {optional_tensors(_LENGTHS)}, "
        f"{options_schema(_METADATA)}, str device='npu:0') -> Tensor",
        _metadata_shapes,
    ),
)


def register_converters() -> None:
    _register_compressor()
    _register_attention()


def _register_attention() -> None:
    from torchair import register_fx_node_ge_converter
    from torchair.ge import attr, custom_op

    @register_fx_node_ge_converter(torch.ops.custom.npu_sparse_attn_sharedkv.default)
    def sparse_attention(q: Any, *, meta_outputs: Any = None, **given: Any) -> Any:
        strides = {f"{name}_stride": attr.Int(_elements_of_block(given.get(name))) for name in _CACHES[:2]}
        return custom_op(
            "SparseAttnSharedkv",
            inputs={"q": q, **{name: given.get(name) for name in _OPTIONAL}},
            attrs={**attributes(_ATTENTION, given), **strides},
            outputs=["attn_out", "softmax_lse"],
        )

    @register_fx_node_ge_converter(torch.ops.custom.npu_sparse_attn_sharedkv_metadata.default)
    def sparse_attention_metadata(
        num_heads_q: int, num_heads_kv: int, head_dim: int, *, meta_outputs: Any = None, **given: Any
    ) -> Any:
        chip = _chip(given.get("device", "npu:0"))
        return custom_op(
            "SparseAttnSharedkvMetadata",
            inputs={name: given.get(name) for name in _LENGTHS},
            attrs={
                "num_heads_q": attr.Int(num_heads_q),
                "num_heads_kv": attr.Int(num_heads_kv),
                "head_dim": attr.Int(head_dim),
                **attributes(_METADATA, given),
                "soc_version": attr.Str(chip.name),
                "aic_core_num": attr.Int(chip.cube_core_num),
                "aiv_core_num": attr.Int(chip.vector_core_num),
            },
            outputs=["metadata"],
        )


def _chip(device: str) -> Any:
    """Whose cores the work is divided among: the graph is for a chip like the one it is compiled on."""
    import torch_npu

    try:
        return torch_npu.npu.get_device_properties(device)
    except (AssertionError, RuntimeError) as error:
        raise ExecutionError(
            "SparseAttnSharedkv is compiled for the number of cores of the chip that is here, and none is",
            key="--npu-custom-ops",
            found=str(error).splitlines()[0],
        ) from error


def _elements_of_block(cache: Any) -> int:
    """Of a cache `[blocks, block, 1, D]` that lies without gaps; 0 if there is none."""
    if cache is None:
        return 0
    _, block, heads, width = cache.symsize
    return int(block) * int(heads) * int(width)
