"""`npu_moe_gating_top_k` with the square root of softplus as its score (`norm_type` 2), also by token id.

Which experts it takes among equal scores is described nowhere; ours is the lowest index.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.ascend.fused_ops.fused_op import Form, first_fault
from nextn.graphs.ops.routing import WEIGHT_SUM_EPS

_SQRT_SOFTPLUS = 2
_MOST_EXPERTS = 2048
_MOST_BY_TOKEN = 64


def _fault(logits: Tensor, normalise: bool) -> str | None:
    return first_fault(
        (normalise, "weights of sum 1 (norm_topk_prob)"),
        (2 < logits.shape[-1] <= _MOST_EXPERTS, f"3 to {_MOST_EXPERTS} experts"),
    )


def _why_not_by_score(logits: Tensor, bias: Tensor, k: int, normalise: bool, scale: float) -> str | None:
    return _fault(logits, normalise)


def _by_score(logits: Tensor, bias: Tensor, k: int, normalise: bool, scale: float) -> tuple[Tensor, Tensor]:
    return _gate(logits, k, scale, bias=bias)


def _why_not_by_token(
    logits: Tensor, ids: Tensor, experts: Tensor, normalise: bool, scale: float
) -> str | None:
    few = (experts.shape[1] <= _MOST_BY_TOKEN, f"at most {_MOST_BY_TOKEN} experts a token")
    return _fault(logits, normalise) or first_fault(few)


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


FORMS = (
    Form("npu_moe_gating_top_k", "score_route", _why_not_by_score, _by_score),
    Form("npu_moe_gating_top_k", "hash_route", _why_not_by_token, _by_token),
)
