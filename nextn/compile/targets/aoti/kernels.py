"""The kernels of libnextn_ops as fused ops, with their C declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from nextn.compile.targets.fused_op import FusedOp


@dataclass(frozen=True)
class NativeKernel(FusedOp):
    """A kernel takes the operator's call as it is: `build` is the operator. AOTInductor calls the C function
    of `declaration`."""

    declaration: str = ""


def _kernel(operator: str, arguments: str) -> NativeKernel:
    call = getattr(torch.ops.nextn, f"nextn_{operator}").default
    declaration = f"AOTITorchError aoti_torch_cpu_nextn_{operator}({arguments}, AtenTensorHandle* ret0)"
    return NativeKernel("native", operator, None, call, declaration=declaration)


KERNELS = (
    _kernel("sinkhorn", "AtenTensorHandle score, int64_t iterations, double eps"),
    _kernel(
        "sample_token",
        "AtenTensorHandle logits, AtenTensorHandle seed, AtenTensorHandle position, "
        "AtenTensorHandle temperature",
    ),
    _kernel("topk_entries", "AtenTensorHandle score, int64_t k"),
)


def c_shims() -> Mapping[torch._ops.OpOverload, list[str]]:
    """As AOTInductor takes the declarations."""
    return {kernel.build: [kernel.declaration] for kernel in KERNELS}  # type: ignore[misc]
