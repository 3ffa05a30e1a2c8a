"""Routed experts: clamped SwiGLU of the chosen experts, weighted and summed in fp32 (spec section 6)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from nextn.graphs.ops.cast import cast, fp32
from nextn.graphs.ops.linear import Weight


def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """`gate_up [..., 2I]`, gate half first: fp32 `[..., I]`; the gate is clamped from above only."""
    gate, up = fp32(gate_up).chunk(2, dim=-1)
    return functional.silu(torch.clamp(gate, max=limit)) * torch.clamp(up, -limit, limit)


def expert_mlp(
    x: Tensor, index: Tensor, route: Tensor, gate_up: Weight, down: Weight, limit: float
) -> Tensor:
    """`x [T, H]`, `index`/`route [T, K]`, `gate_up [E, 2I, H]`, `down [E, H, I]` -> fp32 `[T, H]`.

    With no more row-expert pairs than experts each pair reads its own expert (a round of the demo, 8 pairs
    and 8 experts, takes a quarter less time); beyond that every expert is read once for all rows, which is
    both fewer bytes and larger products.
    """
    if index.numel() <= gate_up.weight.shape[0]:
        return _gathered(x, index, route, gate_up, down, limit)
    return _dense(x, index, route, gate_up, down, limit)


def _gathered(x: Tensor, index: Tensor, route: Tensor, gate_up: Weight, down: Weight, limit: float) -> Tensor:
    dtype = gate_up.weight.dtype
    rows, chosen = index.shape
    first = gate_up.weight[index].flatten(0, 1)  # [T * K, 2I, H]
    expanded = cast(x, dtype)[:, None, :].expand(rows, chosen, -1).flatten(0, 1)  # [T * K, H]
    hidden = torch.bmm(first, expanded[:, :, None])[:, :, 0]  # [T * K, 2I]
    hidden = clamped_swiglu(hidden, limit) * route.reshape(-1, 1)
    second = down.weight[index].flatten(0, 1)  # [T * K, H, I]
    y = torch.bmm(second, cast(hidden, dtype)[:, :, None])[:, :, 0]  # [T * K, H]
    return fp32(y).view(rows, chosen, -1).sum(1)


def _dense(x: Tensor, index: Tensor, route: Tensor, gate_up: Weight, down: Weight, limit: float) -> Tensor:
    dtype = gate_up.weight.dtype
    experts, _, width = gate_up.weight.shape
    chosen = index[:, :, None] == torch.arange(experts)  # [T, K, E]
    weight = torch.where(chosen, route[:, :, None], 0.0).sum(1)  # [T, E], 0 where not chosen
    hidden = functional.linear(cast(x, dtype), gate_up.weight.view(-1, width))  # [T, E * 2I]
    hidden = clamped_swiglu(hidden.view(x.shape[0], experts, -1), limit)  # [T, E, I]
    hidden = cast(hidden * weight[:, :, None], dtype).transpose(0, 1)  # [E, T, I]
    y = torch.bmm(hidden, down.weight.transpose(1, 2))  # [E, T, H]
    return fp32(y).sum(0)
