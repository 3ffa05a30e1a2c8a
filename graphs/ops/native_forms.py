"""The operators of the op layer that have a kernel of ours, and how a lowering treats them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nextn.graphs.ops.doubly_stochastic import doubly_stochastic_plain
from nextn.graphs.ops.draw_token import draw_token_plain
from nextn.graphs.ops.select_entries import select_entries_plain

CPU_KERNELS: dict[torch._ops.OpOverload, list[str]] = {
    torch.ops.nextn.nextn_doubly_stochastic.default: [
        "AOTITorchError aoti_torch_cpu_nextn_doubly_stochastic(AtenTensorHandle score, int64_t iterations, "
        "double eps, AtenTensorHandle* ret0)"
    ],
    torch.ops.nextn.nextn_draw_token.default: [
        "AOTITorchError aoti_torch_cpu_nextn_draw_token(AtenTensorHandle logits, AtenTensorHandle seed, "
        "AtenTensorHandle position, AtenTensorHandle temperature, AtenTensorHandle* ret0)"
    ],
    torch.ops.nextn.nextn_select_entries.default: [
        "AOTITorchError aoti_torch_cpu_nextn_select_entries(AtenTensorHandle score, int64_t k, "
        "AtenTensorHandle* ret0)"
    ],
}
"""C declarations of the kernels in libnextn_ops, as AOTInductor calls them."""

PLAIN_FORMS: dict[torch._ops.OpOverload, Callable[..., torch.Tensor]] = {
    torch.ops.nextn.nextn_doubly_stochastic.default: doubly_stochastic_plain,
    torch.ops.nextn.nextn_draw_token.default: draw_token_plain,
    torch.ops.nextn.nextn_select_entries.default: select_entries_plain,
}
"""Decomposition of the same operators, for lowerings without a kernel."""
