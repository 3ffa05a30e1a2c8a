"""Hyper-connections around a sub-layer: M streams into its input, and its output back (spec 3.1-3.5)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from nextn.graphs.ops.cast import cast, fp32
from nextn.graphs.ops.operator import composite
from nextn.graphs.ops.rms_norm import unit_rms
from nextn.graphs.ops.sinkhorn import sinkhorn


@composite(
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


@composite("(Tensor y, Tensor x, Tensor post, Tensor comb) -> Tensor")
def hyper_post(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Sub-layer output `y [T, H]` and the streams before it `x [T, M, H]` -> new streams in x's dtype.

    The sum runs over the FIRST index of comb: its transpose is applied (spec section 3.3).
    """
    residual = torch.bmm(comb.transpose(1, 2), fp32(x))  # [T, M, H]
    return cast(post[:, :, None] * fp32(y)[:, None, :] + residual, x.dtype)


def weighted_streams(weight: Tensor, x: Tensor) -> Tensor:
    """Sum over streams of `weight [T, M]` times `x [T, M, H]`, in fp32, back in x's dtype."""
    return cast((weight[:, :, None] * fp32(x)).sum(1), x.dtype)
