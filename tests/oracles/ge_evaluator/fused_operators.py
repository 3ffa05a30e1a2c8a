"""GE's fused operators: their operands and attributes, handed to what their descriptions say they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.oracles import ascend_attention as attention
from tests.oracles import ascend_operators as ascend
from tests.oracles.ge_evaluator.attributes import ENGINE_DTYPES, attribute, integers

Results = Tensor | Sequence[Tensor]

_INTERLEAVED = 1
_SQRT_SOFTPLUS = 2
_GROUPED_DTYPES = {0: torch.float16, 1: torch.bfloat16, 2: torch.int32}


class Operands:
    """Operands by their names in the operator's definition, and its attributes."""

    def __init__(self, operator: Any, operands: Sequence[Tensor | None]) -> None:
        self.operator = operator
        names = [name.decode() for name in operator.attr["_input_name_key"].list.s]
        # Optional inputs at the end that are not fed are not there.
        self._fed = {
            name: one for name, one in zip(names, operands, strict=False) if one is not None and one.numel()
        }

    def __getitem__(self, name: str) -> Tensor:
        return self._fed[name]

    def get(self, name: str) -> Tensor | None:
        return self._fed.get(name)

    def none_but(self, *names: str) -> None:
        assert self._fed.keys() <= set(names), (self.operator.name, sorted(self._fed))

    def attribute(self, name: str) -> Any:
        return attribute(self.operator, name)

    def expect(self, **expected: object) -> None:
        """The attributes that a rule knows one value of."""
        found = {name: self.attribute(name) for name in expected}
        assert found == expected, (self.operator.name, found)


def _rms_norm(given: Operands) -> Results:
    return ascend.rms_norm(given["x"], given["gamma"], given.attribute("epsilon"))


def _rotary(given: Operands) -> Results:
    given.expect(mode=_INTERLEAVED)
    return ascend.rotary_interleaved(given["x"], given["cos"], given["sin"], given.get("rotate"))


def _gating(given: Operands) -> Results:
    given.expect(norm_type=_SQRT_SOFTPLUS, group_count=1, k_group=1, out_flag=False, renorm=0)
    chosen_by = (given.get("bias"), given.get("input_ids"), given.get("tid2eid"))
    scale, eps = given.attribute("routed_scaling_factor"), given.attribute("eps")
    return ascend.moe_gating_top_k(given["x"], given.attribute("k"), *chosen_by, scale, eps)


def _init_routing(given: Operands) -> Results:
    given.none_but("x", "expert_idx", "scale")
    index, experts = given["expert_idx"], given.attribute("expert_num")
    given.expect(drop_pad_mode=0, quant_mode=-1, row_idx_type=0, expert_tokens_num_type=1)
    given.expect(expert_tokens_num_flag=True, active_num=index.numel())
    assert integers(given.operator, "active_expert_range") == [0, experts]
    return ascend.moe_init_routing(given["x"], index, given.get("scale"), experts)


def _grouped_matmul(given: Operands) -> Results:
    given.none_but("x0", "weight0", "group_list")
    given.expect(split_item=3, group_type=0, group_list_type=1, act_type=0, transpose_x=False)
    x, weight = given["x0"], given["weight0"]
    matrices = weight.transpose(1, 2) if given.attribute("transpose_weight") else weight
    out = _GROUPED_DTYPES.get(given.attribute("dtype"), x.dtype)
    return ascend.grouped_matmul(x, matrices, given["group_list"], out)


def _finalize_routing(given: Operands) -> Results:
    given.none_but("expanded_x", "expanded_row_idx", "scales")
    scales = given["scales"]
    given.expect(drop_pad_mode=2, k=scales.shape[1])
    return ascend.moe_finalize_routing(given["expanded_x"], given["expanded_row_idx"], scales)


def _clipped_swiglu(given: Operands) -> Results:
    given.none_but("x")
    given.expect(dim=-1, interleaved=False)
    slope, limit, bias = (given.attribute(name) for name in ("alpha", "limit", "bias"))
    return ascend.clipped_swiglu(given["x"], slope, limit, bias)


def _dynamic_quant(given: Operands) -> Results:
    given.none_but("x")
    # Not written where it is the default, int8.
    assert "dst_type" not in given.operator.attr
    return ascend.dynamic_quant(given["x"])


def _quant_matmul(given: Operands) -> Results:
    given.none_but("x1", "x2", "scale", "pertoken_scale")
    given.expect(transpose_x1=False)
    right = given["x2"].t() if given.attribute("transpose_x2") else given["x2"]
    out = ENGINE_DTYPES[given.attribute("dtype")]
    return ascend.quant_matmul(given["x1"], right, given["scale"], given["pertoken_scale"], out)


def _mhc_pre(given: Operands) -> Results:
    given.none_but("x", "phi", "alpha", "bias")
    given.expect(out_flag=0)
    parameters = (given["phi"], given["alpha"], given["bias"])
    eps = given.attribute("norm_eps"), given.attribute("hc_eps")
    return ascend.mhc_pre(given["x"], *parameters, *eps)


def _mhc_post(given: Operands) -> Results:
    return ascend.mhc_post(given["x"], given["h_res"], given["h_out"], given["h_post"])


def _mhc_sinkhorn(given: Operands) -> Results:
    return ascend.mhc_sinkhorn(given["x"], given.attribute("eps"), given.attribute("num_iters"))


def _hc_pre(given: Operands) -> Results:
    given.expect(hc_mult=4)
    parameters = (given["hc_fn"], given["hc_scale"], given["hc_base"])
    eps = given.attribute("norm_eps"), given.attribute("hc_eps")
    return ascend.hc_pre(given["x"], *parameters, given.attribute("hc_sinkhorn_iters"), *eps)


def _hc_post(given: Operands) -> Results:
    return ascend.hc_post(given["x"], given["residual"], given["post"], given["comb"])


def _sparse_attention(given: Operands) -> Results:
    given.expect(ori_mask_mode=4, cmp_mask_mode=3, ori_win_left=127, ori_win_right=0)
    given.expect(layout_q=b"TND", layout_kv=b"PA_ND", return_softmax_lse=False)
    ori, cmp, ratio = given["ori_kv"], given.get("cmp_kv"), given.attribute("cmp_ratio")
    given.expect(ori_kv_stride=ori[0].numel(), cmp_kv_stride=0 if cmp is None else cmp[0].numel())
    found = attention.sparse_attention(
        given["q"],
        ori,
        given["ori_block_table"],
        cmp,
        given.get("cmp_block_table"),
        given.get("cmp_sparse_indices"),
        given["cu_seqlens_q"],
        given["seqused_kv"],
        given["sinks"],
        given["metadata"],
        given.attribute("softmax_scale"),
        ratio,
    )
    return found, torch.empty(0)


def _sparse_attention_metadata(given: Operands) -> Results:
    given.none_but("cu_seqlens_q", "seqused_kv")
    given.expect(num_heads_kv=1, ori_mask_mode=4, cmp_mask_mode=3, ori_win_left=127, ori_win_right=0)
    given.expect(layout_q=b"TND", layout_kv=b"PA_ND", has_ori_kv=True, ori_topk=0)
    names = ("num_heads_q", "head_dim", "batch_size", "max_seqlen_q", "cmp_topk", "cmp_ratio", "has_cmp_kv")
    return attention.attention_metadata(*map(given.attribute, names), given["seqused_kv"])


def _lightning_indexer(given: Operands) -> Results:
    given.expect(layout_query=b"BSND", layout_key=b"PA_BSND", sparse_mode=0)
    operands = ("query", "key", "weights", "actual_seq_lengths_key", "block_table")
    assert bool((given["actual_seq_lengths_query"] == 1).all())
    found = attention.lightning_indexer(*map(given.__getitem__, operands), given.attribute("sparse_count"))
    return found, torch.empty(0)


_COMPRESSOR_OPERANDS = (
    "x",
    "wkv",
    "wgate",
    "state_cache",
    "ape",
    "norm_weight",
    "rope_sin",
    "rope_cos",
    "state_block_table",
    "seqused",
    "start_pos",
)


def _compressor(given: Operands) -> Results:
    given.none_but(*_COMPRESSOR_OPERANDS)
    given.expect(rope_head_dim=64, rotary_mode=2, cache_mode=1)
    given.expect(state_cache_stride_dim0=given["state_cache"][0].numel())
    rest = (given.attribute(name) for name in ("cmp_ratio", "coff", "norm_eps"))
    return attention.compressor(*map(given.__getitem__, _COMPRESSOR_OPERANDS), *rest)


_RULES: dict[str, Callable[[Operands], Results]] = {
    "ClippedSwiglu": _clipped_swiglu,
    "Compressor": _compressor,
    "DynamicQuant": _dynamic_quant,
    "GroupedMatmul": _grouped_matmul,
    "HcPost": _hc_post,
    "HcPre": _hc_pre,
    "LightningIndexer": _lightning_indexer,
    "MhcPost": _mhc_post,
    "MhcPre": _mhc_pre,
    "MhcSinkhorn": _mhc_sinkhorn,
    "MoeFinalizeRoutingV2": _finalize_routing,
    "MoeGatingTopK": _gating,
    "MoeInitRoutingV3": _init_routing,
    "QuantBatchMatmulV3": _quant_matmul,
    "RmsNorm": _rms_norm,
    "RotaryPositionEmbedding": _rotary,
    "SparseAttnSharedkv": _sparse_attention,
    "SparseAttnSharedkvMetadata": _sparse_attention_metadata,
}


def _rule(function: Callable[[Operands], Results]) -> Callable[..., Results]:
    return lambda operator, *operands: function(Operands(operator, operands))


FUSED_RULES = {kind: _rule(function) for kind, function in _RULES.items()}
"""By type, as `operators.RULES`."""
