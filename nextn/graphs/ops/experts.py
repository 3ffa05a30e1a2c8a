"""Routed experts: clamped SwiGLU of the chosen experts, weighted and summed in fp32.

Source: docs/mathematics.md, "Mixture of experts".
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from nextn.graphs.ops.int8_rows import int8_linear
from nextn.graphs.ops.linear import Weight
from nextn.graphs.ops.operator import operator
from nextn.graphs.ops.rows import cast, fp32


@operator("(Tensor gate_up, float limit) -> Tensor")
def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """The activation of every expert: `gate_up [..., 2I]`, gate half first, to fp32 `[..., I]`.

    The gate is clamped from above only.
    """
    gate, up = fp32(gate_up).chunk(2, dim=-1)
    return functional.silu(torch.clamp(gate, max=limit)) * torch.clamp(up, -limit, limit)


def expert_mlp(
    x: Tensor, index: Tensor, route: Tensor, gate_up: Weight, down: Weight, limit: float
) -> Tensor:
    """`x [T, H]`, `index`/`route [T, K]`, `gate_up [E, 2I, H]`, `down [E, H, I]` -> fp32 `[T, H]`."""
    if gate_up.scales is None and down.scales is None:
        return routed_experts(x, index, route, gate_up=gate_up.weight, down=down.weight, limit=limit)
    return routed_int8_experts(
        x,
        index,
        route,
        gate_up=gate_up.weight,
        gate_up_scales=gate_up.scales,
        down=down.weight,
        down_scales=down.scales,
        limit=limit,
        dtype=down.dtype,
    )


@operator("(Tensor x, Tensor index, Tensor route, Tensor gate_up, Tensor down, float limit) -> Tensor")
def routed_experts(
    x: Tensor, index: Tensor, route: Tensor, gate_up: Tensor, down: Tensor, limit: float
) -> Tensor:
    """`expert_mlp` of plain weights.

    With no more row-expert pairs than experts each pair reads its own expert (a round of the demo, 8 pairs
    and 8 experts, takes a quarter less time); beyond that every expert is read once for all rows, which is
    both fewer bytes and larger products.
    """
    if index.numel() <= gate_up.shape[0]:
        return _gathered(x, index, route, gate_up, down, limit)
    return _dense(x, index, route, gate_up, down, limit)


def _gathered(x: Tensor, index: Tensor, route: Tensor, gate_up: Tensor, down: Tensor, limit: float) -> Tensor:
    rows, chosen = index.shape
    first = gate_up[index].flatten(0, 1)  # [T * K, 2I, H]
    expanded = cast(x, gate_up.dtype)[:, None, :].expand(rows, chosen, -1).flatten(0, 1)  # [T * K, H]
    hidden = torch.bmm(first, expanded[:, :, None])[:, :, 0]  # [T * K, 2I]
    hidden = clamped_swiglu(hidden, limit) * route.reshape(-1, 1)
    second = down[index].flatten(0, 1)  # [T * K, H, I]
    y = torch.bmm(second, cast(hidden, down.dtype)[:, :, None])[:, :, 0]  # [T * K, H]
    return fp32(y).view(rows, chosen, -1).sum(1)


def _dense(x: Tensor, index: Tensor, route: Tensor, gate_up: Tensor, down: Tensor, limit: float) -> Tensor:
    experts, _, width = gate_up.shape
    weight = _weight_of_experts(index, route, experts)  # [T, E]
    hidden = functional.linear(cast(x, gate_up.dtype), gate_up.view(-1, width))  # [T, E * 2I]
    hidden = clamped_swiglu(hidden.view(x.shape[0], experts, -1), limit)  # [T, E, I]
    hidden = cast(hidden * weight[:, :, None], down.dtype).transpose(0, 1)  # [E, T, I]
    y = torch.bmm(hidden, down.transpose(1, 2))  # [E, T, H]
    return fp32(y).sum(0)


@operator(
    "(Tensor x, Tensor index, Tensor route, Tensor gate_up, Tensor? gate_up_scales, Tensor down, "
    "Tensor? down_scales, float limit, ScalarType dtype) -> Tensor"
)
def routed_int8_experts(
    x: Tensor,
    index: Tensor,
    route: Tensor,
    gate_up: Tensor,
    gate_up_scales: Tensor | None,
    down: Tensor,
    down_scales: Tensor | None,
    limit: float,
    dtype: torch.dtype,
) -> Tensor:
    """`expert_mlp` of weights of which at least one is int8 rows; the scales of a plain one are None.

    Rows are weighed after the second product, so that the quantised values do not depend on the weight.
    """
    rows, experts = index.shape[0], gate_up.shape[0]
    if index.numel() <= experts:
        pairs = x[:, None, :].expand(-1, index.shape[1], -1).reshape(-1, 1, x.shape[-1])  # [T * K, 1, H]
        chosen = index.flatten()
        hidden = clamped_swiglu(_product(pairs, gate_up, gate_up_scales, dtype, chosen), limit)
        y = _product(hidden, down, down_scales, dtype, chosen)  # [T * K, 1, H]
        return (fp32(y).view(rows, -1, y.shape[-1]) * route[:, :, None]).sum(1)
    hidden = clamped_swiglu(_product(x.expand(experts, -1, -1), gate_up, gate_up_scales, dtype), limit)
    y = fp32(_product(hidden, down, down_scales, dtype))  # [E, T, H]
    return (y * _weight_of_experts(index, route, experts).t()[:, :, None]).sum(0)


def _product(
    x: Tensor, weight: Tensor, scales: Tensor | None, dtype: torch.dtype, chosen: Tensor | None = None
) -> Tensor:
    """`x [N, T, in]` times the transposes of `weight [N, out, in]`, or of its matrices `chosen [N]`."""
    if chosen is not None:
        weight = weight[chosen]
        scales = None if scales is None else scales[chosen]
    if scales is not None:
        return int8_linear(x, weight, scales, dtype)
    return torch.bmm(cast(x, dtype), weight.transpose(1, 2))


def _weight_of_experts(index: Tensor, route: Tensor, experts: int) -> Tensor:
    """`[T, E]`, 0 where not chosen."""
    chosen = index[:, :, None] == torch.arange(experts)  # [T, K, E]
    return torch.where(chosen, route[:, :, None], 0.0).sum(1)
