"""Manifold-constrained hyper-connections: M residual streams, mixed around each sub-layer (spec 3.1-3.5)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nextn.graphs.config import ModelConfig
from nextn.graphs.norm import unit_rms
from nextn.graphs.ops.cast import cast, fp32
from nextn.graphs.ops.doubly_stochastic import doubly_stochastic


class Mixing(NamedTuple):
    """Parameters of one mix, all fp32: fn `[out, M * H]`, base `[out]`, scale `[1 or 3]`."""

    fn: Tensor
    base: Tensor
    scale: Tensor


def register_mixing(module: nn.Module, prefix: str, config: ModelConfig, *, head: bool = False) -> None:
    """Give `module` the buffers `<prefix>_fn`, `_base`, `_scale`, as the release names them."""
    outputs = config.hc_mult if head else (2 + config.hc_mult) * config.hc_mult
    module.register_buffer(f"{prefix}_fn", torch.zeros(outputs, config.stream_width))
    module.register_buffer(f"{prefix}_base", torch.zeros(outputs))
    module.register_buffer(f"{prefix}_scale", torch.ones(1 if head else 3))


def mixing(module: nn.Module, prefix: str) -> Mixing:
    """The parameters `register_mixing` left under `prefix`."""
    return Mixing(*(module.get_buffer(f"{prefix}_{part}") for part in Mixing._fields))


def hyper_pre(x: Tensor, parameters: Mixing, config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Streams `x [T, M, H]` -> sub-layer input `[T, H]` in x's dtype, post `[T, M]`, comb `[T, M, M]`."""
    m = config.hc_mult
    mix = functional.linear(unit_rms(x.flatten(1), config.rms_norm_eps), parameters.fn)  # [T, (2 + M) * M]
    pre, post, comb = mix.split([m, m, m * m], dim=-1)
    base_pre, base_post, base_comb = parameters.base.split([m, m, m * m])
    pre = torch.sigmoid(pre * parameters.scale[0] + base_pre) + config.hc_eps
    post = 2.0 * torch.sigmoid(post * parameters.scale[1] + base_post)
    comb = (comb * parameters.scale[2] + base_comb).unflatten(-1, (m, m))
    return (
        weighted_streams(pre, x),
        post,
        doubly_stochastic(comb, config.hc_sinkhorn_iters, config.hc_eps),
    )


def hyper_post(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Sub-layer output `y [T, H]` and the streams before it `x [T, M, H]` -> new streams in x's dtype.

    The sum runs over the FIRST index of comb: its transpose is applied (spec section 3.3).
    """
    residual = torch.bmm(comb.transpose(1, 2), fp32(x))  # [T, M, H]
    return cast(post[:, :, None] * fp32(y)[:, None, :] + residual, x.dtype)


def hyper_head(x: Tensor, parameters: Mixing, config: ModelConfig) -> Tensor:
    """Collapse of the streams `[T, M, H]` before the final norm: `[T, H]` in x's dtype (spec section 3.5)."""
    mix = functional.linear(unit_rms(x.flatten(1), config.rms_norm_eps), parameters.fn)  # [T, M]
    weight = torch.sigmoid(mix * parameters.scale + parameters.base) + config.hc_eps
    return weighted_streams(weight, x)


def weighted_streams(weight: Tensor, x: Tensor) -> Tensor:
    """Sum over streams of `weight [T, M]` times `x [T, M, H]`, in fp32, back in x's dtype."""
    return cast((weight[:, :, None] * fp32(x)).sum(1), x.dtype)
