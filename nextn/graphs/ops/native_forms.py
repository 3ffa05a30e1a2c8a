"""The operators of the op layer that have a kernel of ours, and how a lowering treats them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nextn.graphs.ops.sample_token import sample_token_plain
from nextn.graphs.ops.sinkhorn import sinkhorn_plain
from nextn.graphs.ops.topk_entries import topk_entries_plain

PLAIN_FORMS: dict[torch._ops.OpOverload, Callable[..., torch.Tensor]] = {
    torch.ops.nextn.nextn_sinkhorn.default: sinkhorn_plain,
    torch.ops.nextn.nextn_sample_token.default: sample_token_plain,
    torch.ops.nextn.nextn_topk_entries.default: topk_entries_plain,
}
"""Decomposition of the same operators, for lowerings without a kernel."""
