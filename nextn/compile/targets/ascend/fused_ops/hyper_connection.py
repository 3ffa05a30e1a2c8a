"""Hyper-connections: `npu_mhc_*` of torch_npu, and `npu_hc_*` of the operator package for DeepSeek-V4.

The graph engine knows neither unless their packages are installed where `atc` runs: each is chosen only if
named. Both take and give streams in bfloat16, as the plain operators with its float32 inside; `hyper_post`
has its sub-layer output rounded to bfloat16 first, which the plain operators leave in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.fused_op import FusedOp, first_fault
from nextn.graphs.ops.hyper_connection import sinkhorn
from nextn.graphs.ops.rows import cast

_STREAMS = 4
_MHC_ALIGNMENT = 128
_HC_WIDTHS = (4096, 7168)


def _mhc_fault(x: Tensor) -> str | None:
    return first_fault(
        (x.dtype == torch.bfloat16, "bfloat16 streams"),
        (x.shape[1] == _STREAMS, f"{_STREAMS} streams"),
        (x.shape[2] % _MHC_ALIGNMENT == 0, f"a width that {_MHC_ALIGNMENT} divides"),
    )


def _hc_fault(x: Tensor) -> str | None:
    return first_fault(
        (x.dtype == torch.bfloat16, "bfloat16 streams"),
        (x.shape[1] == _STREAMS, f"{_STREAMS} streams"),
        (x.shape[2] in _HC_WIDTHS, "width " + " or ".join(map(str, _HC_WIDTHS))),
    )


def _mhc_pre(
    x: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm_eps: float, eps: float, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    into, post, score, *_ = torch.ops.npu.npu_mhc_pre(x, fn, scale, base, norm_eps=norm_eps, hc_eps=eps)
    return into, post, sinkhorn(score, iterations, eps)


def _hc_pre(
    x: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm_eps: float, eps: float, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    into, post, comb = torch.ops.custom.npu_hc_pre(
        x,
        fn,
        scale,
        base,
        hc_mult=_STREAMS,
        hc_sinkhorn_iters=iterations,
        norm_eps=norm_eps,
        hc_eps=eps,
    )
    return into, post, comb


def _mhc_post(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    streams: Tensor = torch.ops.npu.npu_mhc_post(x, comb, cast(y, x.dtype), post)
    return streams


def _hc_post(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    streams: Tensor = torch.ops.custom.npu_hc_post(cast(y, x.dtype), x, post, comb)
    return streams


def _sinkhorn_fault(score: Tensor, iterations: int, eps: float) -> str | None:
    return first_fault(
        (score.shape[-1] in (4, 6, 8), "4, 6 or 8 streams"), (1 <= iterations <= 100, "1 to 100 iterations")
    )


def _sinkhorn(score: Tensor, iterations: int, eps: float) -> Tensor:
    comb: Tensor = torch.ops.npu.npu_mhc_sinkhorn(score, eps=eps, num_iters=iterations)[0]
    return comb


FUSED_OPS = (
    FusedOp("npu_hc_pre", "hyper_pre", lambda x, *_: _hc_fault(x), _hc_pre, ("HcPre",)),
    FusedOp("npu_mhc_pre", "hyper_pre", lambda x, *_: _mhc_fault(x), _mhc_pre, ("MhcPre",)),
    FusedOp("npu_hc_post", "hyper_post", lambda y, x, *_: _hc_fault(x), _hc_post, ("HcPost",)),
    FusedOp("npu_mhc_post", "hyper_post", lambda y, x, *_: _mhc_fault(x), _mhc_post, ("MhcPost",)),
    FusedOp("npu_mhc_sinkhorn", "sinkhorn", _sinkhorn_fault, _sinkhorn, ("MhcSinkhorn",)),
)
