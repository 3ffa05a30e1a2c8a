"""Parameters of the hyper-connections: M residual streams, mixed around each sub-layer.

Source: docs/mathematics.md, "Hyper-connections".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nextn.graphs.config import ModelConfig
from nextn.graphs.ops import hyper_connection
from nextn.graphs.ops.hyper_connection import weighted_streams
from nextn.graphs.ops.norms import unit_rms


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
    """The parameters that `register_mixing` registered under `prefix`."""
    return Mixing(*(module.get_buffer(f"{prefix}_{part}") for part in Mixing._fields))


def hyper_pre(x: Tensor, parameters: Mixing, config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Streams `x [T, M, H]` -> sub-layer input `[T, H]` in x's dtype, post `[T, M]`, comb `[T, M, M]`."""
    return hyper_connection.hyper_pre(
        x=x,
        fn=parameters.fn,
        scale=parameters.scale,
        base=parameters.base,
        norm_eps=config.rms_norm_eps,
        eps=config.hc_eps,
        iterations=config.hc_sinkhorn_iters,
    )


def hyper_head(x: Tensor, parameters: Mixing, config: ModelConfig) -> Tensor:
    """Collapse of the streams `[T, M, H]` before the final norm: `[T, H]` in x's dtype."""
    mix = functional.linear(unit_rms(x.flatten(1), config.rms_norm_eps), parameters.fn)  # [T, M]
    weight = torch.sigmoid(mix * parameters.scale + parameters.base) + config.hc_eps
    return weighted_streams(weight, x)
