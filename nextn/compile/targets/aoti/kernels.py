"""The C declarations of the kernels in libnextn_ops, as AOTInductor calls them."""

from __future__ import annotations

import torch

import nextn.graphs.ops  # noqa: F401, defines the operators

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
