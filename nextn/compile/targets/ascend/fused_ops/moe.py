"""The router, and routed experts as rows sorted by expert.

`npu_moe_gating_top_k` has the square root of softplus as its score (`norm_type` 2), also where experts are
chosen by token id. Which experts it takes among equal scores is described nowhere; ours is the lowest index.

Experts are `npu_moe_init_routing_v2`, two `npu_grouped_matmul`s, and `npu_moe_finalize_routing`, which weighs
the rows of a token and adds them, in float32. The plain operators weigh rows before the second product; in
bfloat16 that rounds differently. Int8 products come out as int32 and are scaled here: the operator's own
scaling wants scales in bfloat16 for a bfloat16 result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.ascend.fused_ops.row_wise import FLOATS
from nextn.compile.targets.fused_op import FusedOp, first_fault
from nextn.graphs.ops.experts import clamped_swiglu
from nextn.graphs.ops.routing import WEIGHT_SUM_EPS
from nextn.graphs.ops.rows import cast, fp32

_SQRT_SOFTPLUS = 2
_MOST_ROUTED = 2048
_MOST_BY_TOKEN = 64


def _route_fault(logits: Tensor, normalise: bool) -> str | None:
    return first_fault(
        (normalise, "weights of sum 1 (norm_topk_prob)"),
        (2 < logits.shape[-1] <= _MOST_ROUTED, f"3 to {_MOST_ROUTED} experts"),
    )


def _score_fault(logits: Tensor, bias: Tensor, k: int, normalise: bool, scale: float) -> str | None:
    return _route_fault(logits, normalise)


def _by_score(logits: Tensor, bias: Tensor, k: int, normalise: bool, scale: float) -> tuple[Tensor, Tensor]:
    return _gate(logits, k, scale, bias=bias)


def _token_fault(logits: Tensor, ids: Tensor, experts: Tensor, normalise: bool, scale: float) -> str | None:
    few = (experts.shape[1] <= _MOST_BY_TOKEN, f"at most {_MOST_BY_TOKEN} experts a token")
    return _route_fault(logits, normalise) or first_fault(few)


def _by_token(
    logits: Tensor, ids: Tensor, experts: Tensor, normalise: bool, scale: float
) -> tuple[Tensor, Tensor]:
    return _gate(logits, experts.shape[1], scale, input_ids=ids, tid2eid=experts)


def _gate(logits: Tensor, k: int, scale: float, **chosen_by: Tensor) -> tuple[Tensor, Tensor]:
    weight, index, _ = torch.ops.npu.npu_moe_gating_top_k(
        logits,
        k,
        norm_type=_SQRT_SOFTPLUS,
        routed_scaling_factor=scale,
        eps=WEIGHT_SUM_EPS,
        **chosen_by,
    )
    return index.to(torch.int64), weight


_MOST_EXPERTS = 1024
_LONGEST_AXIS = 65536
_ROWS_AS_THEY_LIE = 2
"""The `drop_pad_mode` of `npu_moe_finalize_routing` for places as `npu_moe_init_routing_v2` writes them."""


def _plain_experts_fault(
    x: Tensor, index: Tensor, route: Tensor, gate_up: Tensor, down: Tensor, limit: float
) -> str | None:
    return _experts_fault(gate_up, down) or first_fault(
        (gate_up.dtype == down.dtype and down.dtype in (torch.float32, torch.bfloat16), FLOATS)
    )


def _experts_fault(gate_up: Tensor, down: Tensor) -> str | None:
    return first_fault(
        (1 < gate_up.shape[0] <= _MOST_EXPERTS, f"2 to {_MOST_EXPERTS} experts"),
        (max(*gate_up.shape[1:], *down.shape[1:]) < _LONGEST_AXIS, f"axes below {_LONGEST_AXIS}"),
    )


def _routed_experts(
    x: Tensor, index: Tensor, route: Tensor, gate_up: Tensor, down: Tensor, limit: float
) -> Tensor:
    rows, places, counts, _ = _sorted_by_expert(cast(x, gate_up.dtype), index, gate_up.shape[0])
    hidden = clamped_swiglu(_product(rows, gate_up, counts), limit)  # [T * K, I]
    return _of_tokens(_product(cast(hidden, down.dtype), down, counts), places, route)


def _int8_experts_fault(
    x: Tensor,
    index: Tensor,
    route: Tensor,
    gate_up: Tensor,
    gate_up_scales: Tensor | None,
    down: Tensor,
    down_scales: Tensor | None,
    limit: float,
    dtype: torch.dtype,
) -> str | None:
    return _experts_fault(gate_up, down) or first_fault(
        (gate_up_scales is not None and down_scales is not None, "both weights as int8 rows"),
        (dtype == torch.bfloat16, "bfloat16, which npu_dynamic_quant takes"),
    )


def _routed_int8_experts(
    x: Tensor,
    index: Tensor,
    route: Tensor,
    gate_up: Tensor,
    gate_up_scales: Tensor,
    down: Tensor,
    down_scales: Tensor,
    limit: float,
    dtype: torch.dtype,
) -> Tensor:
    experts = gate_up.shape[0]
    codes, steps = torch.ops.npu.npu_dynamic_quant(cast(x, dtype))
    rows, places, counts, row_steps = _sorted_by_expert(codes, index, experts, steps)
    owner = _experts_of_rows(counts, rows.shape[0])
    first = _scaled(_product(rows, gate_up, counts, torch.int32), gate_up_scales, owner, row_steps, dtype)
    codes, row_steps = torch.ops.npu.npu_dynamic_quant(cast(clamped_swiglu(first, limit), dtype))
    second = _scaled(_product(codes, down, counts, torch.int32), down_scales, owner, row_steps, dtype)
    return _of_tokens(second, places, route)


def _sorted_by_expert(
    x: Tensor, index: Tensor, experts: int, steps: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows `[T * K, H]`, where each pair's row went `[T * K]`, rows of each expert `[E]`, and rows' steps."""
    rows, places, counts, row_steps = torch.ops.npu.npu_moe_init_routing_v2(
        x,
        index.to(torch.int32),
        scale=steps,
        active_num=index.numel(),
        expert_num=experts,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[0, experts],
    )
    return rows, places, counts, row_steps


def _product(rows: Tensor, weight: Tensor, counts: Tensor, out: torch.dtype | None = None) -> Tensor:
    """Each row times the transpose of its expert's `weight [E, out, in]`."""
    kind = {} if out is None else {"output_dtype": _number(out)}
    (y,) = torch.ops.npu.npu_grouped_matmul(
        [rows],
        [weight.transpose(1, 2)],
        group_list=counts,
        split_item=3,
        group_type=0,
        group_list_type=1,
        **kind,
    )
    return y


def _number(dtype: torch.dtype) -> int:
    """How torch_npu's schemas name a dtype: torch's own `ScalarType`."""
    return {torch.int32: 3, torch.bfloat16: 15}[dtype]


def _experts_of_rows(counts: Tensor, rows: int) -> Tensor:
    """The expert of each sorted row, int64 `[rows]`: how many experts end before it."""
    ends = torch.cumsum(counts, 0)
    return (torch.arange(rows)[:, None] >= ends).to(torch.int64).sum(1)


def _scaled(total: Tensor, scales: Tensor, owner: Tensor, steps: Tensor, dtype: torch.dtype) -> Tensor:
    """`total` int32 `[rows, out]` as values, by scales fp32 `[E, out, 1]` and the rows' steps."""
    return cast(fp32(total) * scales.flatten(1)[owner] * steps[:, None], dtype)


def _of_tokens(y: Tensor, places: Tensor, route: Tensor) -> Tensor:
    """Weighted sum of the rows of each token, fp32 `[T, H]`."""
    total: Tensor = torch.ops.npu.npu_moe_finalize_routing(
        fp32(y), None, None, None, route, places, None, _ROWS_AS_THEY_LIE, route.shape[1]
    )
    return total


FUSED_OPS = (
    FusedOp("npu_moe_gating_top_k", "score_route", _score_fault, _by_score),
    FusedOp("npu_moe_gating_top_k", "hash_route", _token_fault, _by_token),
    FusedOp("npu_grouped_matmul", "routed_experts", _plain_experts_fault, _routed_experts),
    FusedOp("npu_grouped_matmul", "routed_int8_experts", _int8_experts_fault, _routed_int8_experts),
)
