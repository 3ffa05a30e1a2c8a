"""The operators of the op layer that have a kernel of ours, and how a lowering treats them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nextn.graphs.ops.sample_token import sample_token_plain
from nextn.graphs.ops.sinkhorn import sinkhorn_plain
from nextn.graphs.ops.topk_entries import topk_entries_plain

CPU_KERNELS: dict[torch._ops.OpOverload, list[str]] = {
    torch.ops.nextn.nextn_sinkhorn.default: [
        "AOTITorchError aoti_torch_cpu_nextn_sinkhorn(AtenTensorHandle score, int64_t iterations, "
        "double eps, AtenTensorHandle* ret0)"
    ],
    torch.ops.nextn.nextn_sample_token.default: [
        "AOTITorchError aoti_torch_cpu_nextn_sample_token(AtenTensorHandle logits, AtenTensorHandle seed, "
        "AtenTensorHandle position, AtenTensorHandle temperature, AtenTensorHandle* ret0)"
    ],
    torch.ops.nextn.nextn_topk_entries.default: [
        "AOTITorchError aoti_torch_cpu_nextn_topk_entries(AtenTensorHandle score, int64_t k, "
        "AtenTensorHandle* ret0)"
    ],
}
"""C declarations of the kernels in libnextn_ops, as AOTInductor calls them."""

PLAIN_FORMS: dict[torch._ops.OpOverload, Callable[..., torch.Tensor]] = {
    torch.ops.nextn.nextn_sinkhorn.default: sinkhorn_plain,
    torch.ops.nextn.nextn_sample_token.default: sample_token_plain,
    torch.ops.nextn.nextn_topk_entries.default: topk_entries_plain,
}
"""Decomposition of the same operators, for lowerings without a kernel."""
