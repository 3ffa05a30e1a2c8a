"""Hyper-connections around a sub-layer: M streams into its input, and its output back into the streams.

Source: docs/mathematics.md, "Hyper-connections".
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from nextn.graphs.ops.norms import unit_rms
from nextn.graphs.ops.operator import operator
from nextn.graphs.ops.rows import cast, fp32


@operator(
    "(Tensor score, SymInt iterations, float eps) -> Tensor",
    opaque=lambda score, iterations, eps: torch.empty_like(score),
)
def sinkhorn(score: Tensor, iterations: int, eps: float) -> Tensor:
    """Mixing matrices fp32 `[T, M, M]` from `score [T, M, M]`: Sinkhorn normalisation.

    Softmax over the last axis, then columns, then rows and columns in turn, `iterations` column passes
    in all; `eps` is added to the softmax and to every sum. Plain, this is 117 small nodes; on the CPU it is
    one kernel.
    """
    comb = torch.softmax(score, dim=-1) + eps
    comb = comb / (comb.sum(1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(2, keepdim=True) + eps)
        comb = comb / (comb.sum(1, keepdim=True) + eps)
    return comb


@operator(
    "(Tensor x, Tensor fn, Tensor scale, Tensor base, float norm_eps, float eps, int iterations)"
    " -> (Tensor, Tensor, Tensor)"
)
def hyper_pre(
    x: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm_eps: float, eps: float, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Streams `x [T, M, H]` -> sub-layer input `[T, H]` in x's dtype, post `[T, M]`, comb `[T, M, M]`.

    fn fp32 `[(2 + M) * M, M * H]`, scale fp32 `[3]`, base fp32 `[(2 + M) * M]`; `iterations` column passes of
    the normalisation that makes comb doubly stochastic.
    """
    m = x.shape[1]
    mix = functional.linear(unit_rms(x.flatten(1), norm_eps), fn)  # [T, (2 + M) * M]
    pre, post, comb = mix.split([m, m, m * m], dim=-1)
    base_pre, base_post, base_comb = base.split([m, m, m * m])
    pre = torch.sigmoid(pre * scale[0] + base_pre) + eps
    post = 2.0 * torch.sigmoid(post * scale[1] + base_post)
    comb = (comb * scale[2] + base_comb).unflatten(-1, (m, m))
    return weighted_streams(pre, x), post, sinkhorn(comb, iterations, eps)


@operator("(Tensor y, Tensor x, Tensor post, Tensor comb) -> Tensor")
def hyper_post(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Sub-layer output `y [T, H]` and the streams before it `x [T, M, H]` -> new streams in x's dtype.

    The sum runs over the FIRST index of comb: the transpose of comb is applied.
    """
    residual = torch.bmm(comb.transpose(1, 2), fp32(x))  # [T, M, H]
    return cast(post[:, :, None] * fp32(y)[:, None, :] + residual, x.dtype)


def weighted_streams(weight: Tensor, x: Tensor) -> Tensor:
    """Sum over streams of `weight [T, M]` times `x [T, M, H]`, in fp32, back in x's dtype."""
    return cast((weight[:, :, None] * fp32(x)).sum(1), x.dtype)
