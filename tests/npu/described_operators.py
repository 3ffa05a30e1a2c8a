"""torch_npu's fused operators on a CPU, by their descriptions: fused ops run without an NPU."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from nextn.compile.targets.ascend.custom_ops import declare_custom_ops
from tests.oracles import ascend_attention as attention
from tests.oracles import ascend_operators as ascend

_DTYPES = {None: torch.int8, 3: torch.int32, 15: torch.bfloat16}
"""By torch's own numbers, as torch_npu's schemas name them."""


def _rotary(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Any = None) -> Tensor:
    assert rotary_mode == "interleave"
    return ascend.rotary_interleaved(x, r1, r2, rotate)


def _gating(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
    norm_type: int = 0,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
    **rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    assert norm_type == 2
    return ascend.moe_gating_top_k(x, k, bias, input_ids, tid2eid, routed_scaling_factor, eps)


def _init_routing(
    x: Tensor, expert_idx: Tensor, *, scale: Tensor | None = None, expert_num: int = -1, **rest: Any
) -> tuple[Tensor, ...]:
    return ascend.moe_init_routing(x, expert_idx, scale, expert_num)


def _grouped_matmul(
    x: list[Tensor], weight: list[Tensor], *, group_list: Any = None, output_dtype: Any = None, **rest: Any
) -> list[Tensor]:
    out = x[0].dtype if output_dtype is None else _DTYPES[output_dtype]
    return [ascend.grouped_matmul(x[0], weight[0], group_list, out)]


def _finalize_routing(
    x: Tensor, skip1: None, skip2: None, bias: None, scales: Tensor, places: Tensor, *rest: Any
) -> Tensor:
    return ascend.moe_finalize_routing(x, places, scales)


def _clipped_swiglu(
    x: Tensor, *, alpha: float = 1.702, limit: float = 7.0, bias: float = 1.0, **rest: Any
) -> Tensor:
    return ascend.clipped_swiglu(x, alpha, limit, bias)


def _quant_matmul(
    x1: Tensor, x2: Tensor, scale: Tensor, *, pertoken_scale: Tensor, output_dtype: Any = None, **rest: Any
) -> Tensor:
    return ascend.quant_matmul(x1, x2, scale, pertoken_scale, _DTYPES[output_dtype])


def _mhc_pre(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    *,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    **rest: Any,
) -> tuple[Tensor, ...]:
    found = ascend.mhc_pre(x, phi, alpha, bias, norm_eps, hc_eps)
    return (*found, *(torch.empty(0) for _ in range(3)))


def _mhc_sinkhorn(x: Tensor, *, eps: float = 1e-6, num_iters: int = 20, **rest: Any) -> tuple[Tensor, ...]:
    return ascend.mhc_sinkhorn(x, eps, num_iters), torch.empty(0), torch.empty(0)


def _hc_pre(
    x: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    *,
    hc_mult: int = 4,
    hc_sinkhorn_iters: int = 20,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
) -> tuple[Tensor, ...]:
    return ascend.hc_pre(x, fn, scale, base, hc_sinkhorn_iters, norm_eps, hc_eps)


def _sparse_attention(
    q: Tensor,
    *,
    ori_kv: Tensor,
    ori_block_table: Tensor,
    cmp_kv: Tensor | None = None,
    cmp_block_table: Tensor | None = None,
    cmp_sparse_indices: Tensor | None = None,
    cu_seqlens_q: Tensor,
    seqused_kv: Tensor,
    sinks: Tensor,
    metadata: Tensor,
    softmax_scale: float,
    cmp_ratio: int,
    layout_q: str,
    **rest: Any,
) -> tuple[Tensor, Tensor]:
    assert layout_q == "TND"
    keys = (ori_kv, ori_block_table, cmp_kv, cmp_block_table, cmp_sparse_indices)
    found = attention.sparse_attention(
        q, *keys, cu_seqlens_q, seqused_kv, sinks, metadata, softmax_scale, cmp_ratio
    )
    return found, torch.empty(0)


def _sparse_attention_metadata(
    heads: int,
    heads_kv: int,
    width: int,
    *,
    seqused_kv: Tensor,
    batch_size: int = 0,
    max_seqlen_q: int = 0,
    cmp_topk: int = 0,
    cmp_ratio: int = -1,
    has_cmp_kv: bool = True,
    **rest: Any,
) -> Tensor:
    return attention.attention_metadata(
        heads, width, batch_size, max_seqlen_q, cmp_topk, cmp_ratio, has_cmp_kv, seqused_kv
    )


def _lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_key: Tensor,
    block_table: Tensor,
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    **rest: Any,
) -> tuple[Tensor, Tensor]:
    assert sparse_mode == 0
    found = attention.lightning_indexer(
        query, key, weights, actual_seq_lengths_key, block_table, sparse_count
    )
    return found, torch.empty(0)


def _compressor(
    *tensors: Tensor,
    rope_head_dim: int = 64,
    cmp_ratio: int = 4,
    coff: int = 1,
    norm_eps: float = 1e-6,
    rotary_mode: int = 1,
    cache_mode: int = 1,
) -> tuple[Tensor, Tensor]:
    assert (rope_head_dim, rotary_mode, cache_mode) == (64, 2, 1)
    return attention.compressor(*tensors, cmp_ratio, coff, norm_eps)


_IMPLEMENTATIONS = {
    "npu::npu_clipped_swiglu": _clipped_swiglu,
    "npu::npu_dynamic_quant": lambda x, **rest: ascend.dynamic_quant(x),
    "npu::npu_grouped_matmul": _grouped_matmul,
    "npu::npu_lightning_indexer": _lightning_indexer,
    "npu::npu_mhc_post": ascend.mhc_post,
    "npu::npu_mhc_pre": _mhc_pre,
    "npu::npu_mhc_sinkhorn": _mhc_sinkhorn,
    "npu::npu_moe_finalize_routing": _finalize_routing,
    "npu::npu_moe_gating_top_k": _gating,
    "npu::npu_moe_init_routing_v2": _init_routing,
    "npu::npu_quant_matmul": _quant_matmul,
    "npu::npu_rms_norm": lambda x, gamma, epsilon=1e-6: ascend.rms_norm(x, gamma, epsilon),
    "npu::npu_rotary_mul": _rotary,
    "custom::npu_hc_post": ascend.hc_post,
    "custom::npu_hc_pre": _hc_pre,
    "custom::npu_sparse_attn_sharedkv": _sparse_attention,
    "custom::npu_sparse_attn_sharedkv_metadata": _sparse_attention_metadata,
    "nextn_npu::compressor": _compressor,
}


@functools.cache
def run_on_cpu() -> None:
    """Gives the operators a CPU implementation, for the rest of the process."""
    import torch_npu  # noqa: F401

    declare_custom_ops()
    for name, function in _IMPLEMENTATIONS.items():
        torch.library.impl(name, "CPU", function)
