"""`SparseAttnSharedkv`, and `SparseAttnSharedkvMetadata` that divides its work among cores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nextn.compile.npu.custom_ops.declared import Declared
from nextn.runtime.contract.errors import ExecutionError

METADATA_WORDS = 1024

_OPTIONAL_INPUTS = (
    "ori_kv",
    "cmp_kv",
    "ori_sparse_indices",
    "cmp_sparse_indices",
    "ori_block_table",
    "cmp_block_table",
    "cu_seqlens_q",
    "cu_seqlens_ori_kv",
    "cu_seqlens_cmp_kv",
    "seqused_q",
    "seqused_kv",
    "sinks",
    "metadata",
)
"""In the order of GE's definition."""

_LENGTHS = ("cu_seqlens_q", "cu_seqlens_ori_kv", "cu_seqlens_cmp_kv", "seqused_q", "seqused_kv")


def _tensors(names: tuple[str, ...]) -> str:
    return ", ".join(f"Tensor? {name}=None" for name in names)


def _attention_shapes(q: Tensor, **_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty((0,), dtype=torch.float32)


def _metadata_shapes(num_heads_q: int, num_heads_kv: int, head_dim: int, **lengths: Any) -> Tensor:
    found = next(lengths[name] for name in _LENGTHS if lengths.get(name) is not None)
    return torch.empty((METADATA_WORDS,), dtype=torch.int32, device=found.device)


OPERATORS = (
    Declared(
        "custom",
        "npu_sparse_attn_sharedkv",
        f"(Tensor q, *, {_tensors(_OPTIONAL_INPUTS)}, float softmax_scale=0, int cmp_ratio=0, "
        "int ori_mask_mode=4, int cmp_mask_mode=3, int ori_win_left=127, int ori_win_right=0, "
        "str layout_q='BSND', str layout_kv='PA_ND', bool return_softmax_lse=False) -> (Tensor, Tensor)",
        _attention_shapes,
    ),
    Declared(
        "custom",
        "npu_sparse_attn_sharedkv_metadata",
        f"(int num_heads_q, int num_heads_kv, int head_dim, *, {_tensors(_LENGTHS)}, int batch_size=0, "
        "int max_seqlen_q=0, int max_seqlen_kv=0, int ori_topk=0, int cmp_topk=0, int cmp_ratio=-1, "
        "int ori_mask_mode=4, int cmp_mask_mode=3, int ori_win_left=127, int ori_win_right=0, "
        "str layout_q='BSND', str layout_kv='PA_ND', bool has_ori_kv=True, bool has_cmp_kv=True, "
        "str device='npu:0') -> Tensor",
        _metadata_shapes,
    ),
)


def register_converters() -> None:
    from torchair import register_fx_node_ge_converter
    from torchair.ge import attr, custom_op

    @register_fx_node_ge_converter(torch.ops.custom.npu_sparse_attn_sharedkv.default)
    def sparse_attention(
        q: Any,
        *,
        softmax_scale: float = 0.0,
        cmp_ratio: int = 0,
        ori_mask_mode: int = 4,
        cmp_mask_mode: int = 3,
        ori_win_left: int = 127,
        ori_win_right: int = 0,
        layout_q: str = "BSND",
        layout_kv: str = "PA_ND",
        return_softmax_lse: bool = False,
        meta_outputs: Any = None,
        **tensors: Any,
    ) -> Any:
        return custom_op(
            "SparseAttnSharedkv",
            inputs={"q": q, **{name: tensors.get(name) for name in _OPTIONAL_INPUTS}},
            attrs={
                "softmax_scale": attr.Float(softmax_scale),
                "cmp_ratio": attr.Int(cmp_ratio),
                "ori_mask_mode": attr.Int(ori_mask_mode),
                "cmp_mask_mode": attr.Int(cmp_mask_mode),
                "ori_kv_stride": attr.Int(_elements_of_block(tensors.get("ori_kv"))),
                "cmp_kv_stride": attr.Int(_elements_of_block(tensors.get("cmp_kv"))),
                "ori_win_left": attr.Int(ori_win_left),
                "ori_win_right": attr.Int(ori_win_right),
                "layout_q": attr.Str(layout_q),
                "layout_kv": attr.Str(layout_kv),
                "return_softmax_lse": attr.Bool(return_softmax_lse),
            },
            outputs=["attn_out", "softmax_lse"],
        )

    @register_fx_node_ge_converter(torch.ops.custom.npu_sparse_attn_sharedkv_metadata.default)
    def sparse_attention_metadata(
        num_heads_q: int,
        num_heads_kv: int,
        head_dim: int,
        *,
        batch_size: int = 0,
        max_seqlen_q: int = 0,
        max_seqlen_kv: int = 0,
        ori_topk: int = 0,
        cmp_topk: int = 0,
        cmp_ratio: int = -1,
        ori_mask_mode: int = 4,
        cmp_mask_mode: int = 3,
        ori_win_left: int = 127,
        ori_win_right: int = 0,
        layout_q: str = "BSND",
        layout_kv: str = "PA_ND",
        has_ori_kv: bool = True,
        has_cmp_kv: bool = True,
        device: str = "npu:0",
        meta_outputs: Any = None,
        **lengths: Any,
    ) -> Any:
        chip = _chip(device)
        return custom_op(
            "SparseAttnSharedkvMetadata",
            inputs={name: lengths.get(name) for name in _LENGTHS},
            attrs={
                "num_heads_q": attr.Int(num_heads_q),
                "num_heads_kv": attr.Int(num_heads_kv),
                "head_dim": attr.Int(head_dim),
                "batch_size": attr.Int(batch_size),
                "max_seqlen_q": attr.Int(max_seqlen_q),
                "max_seqlen_kv": attr.Int(max_seqlen_kv),
                "ori_topk": attr.Int(ori_topk),
                "cmp_topk": attr.Int(cmp_topk),
                "cmp_ratio": attr.Int(cmp_ratio),
                "ori_mask_mode": attr.Int(ori_mask_mode),
                "cmp_mask_mode": attr.Int(cmp_mask_mode),
                "ori_win_left": attr.Int(ori_win_left),
                "ori_win_right": attr.Int(ori_win_right),
                "layout_q": attr.Str(layout_q),
                "layout_kv": attr.Str(layout_kv),
                "has_ori_kv": attr.Bool(has_ori_kv),
                "has_cmp_kv": attr.Bool(has_cmp_kv),
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
