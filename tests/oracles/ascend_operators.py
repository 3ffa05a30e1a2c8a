"""What Ascend's fused operators compute, from their published descriptions (torch_npu's docstrings, and the
pages of CANN's operator libraries); nobody here has seen one run.

Where a description says `round`, it is taken to mean half to even; among equal scores of a top-k the choice
is torch's. Arithmetic is float32 and results have the dtype of the input, as the descriptions have it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    assert x.dtype == gamma.dtype, "gamma has the dtype of x"
    wide = x.float()
    rstd = 1.0 / torch.sqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(x.dtype), rstd


def rotary_interleaved(x: Tensor, cos: Tensor, sin: Tensor, rotate: Tensor | None) -> Tensor:
    """`[B, S, N, D]` with angles `[1, S, 1, D]`; `rotate` is a matrix `[D, D]` in place of the mode's own."""
    assert x.dim() == 4 and cos.shape == sin.shape == (1, x.shape[1], 1, x.shape[3])
    assert x.shape[0] * x.shape[2] < 1000 and x.shape[3] < 896 and x.shape[3] % 2 == 0
    if rotate is None:
        turned = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
    else:
        turned = x @ rotate
    return x * cos + turned * sin


def moe_gating_top_k(
    x: Tensor,
    k: int,
    bias: Tensor | None,
    input_ids: Tensor | None,
    tid2eid: Tensor | None,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`norm_type` 2, one group: weights `[T, K]`, experts int32 `[T, K]`, scores `[T, E]`."""
    score = torch.sqrt(functional.softplus(x.float()))
    if tid2eid is not None:
        assert input_ids is not None and tid2eid.shape[1] == k
        index = tid2eid[input_ids]
    else:
        index = torch.topk(score if bias is None else score + bias, k, dim=-1).indices
    chosen = torch.take_along_dim(score, index.long(), dim=1)
    weight = chosen / (chosen.sum(-1, keepdim=True) + eps) * scale
    return weight.to(x.dtype), index.to(torch.int32), score


def moe_init_routing(
    x: Tensor, expert_idx: Tensor, scale: Tensor | None, experts: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows sorted by expert, where each (row, k) went (by rows), rows of each expert, and rows' scales."""
    assert expert_idx.dtype == torch.int32
    pairs = [(int(expert), place) for place, expert in enumerate(expert_idx.flatten())]
    order = torch.tensor([place for _, place in sorted(pairs)])
    places = torch.empty(len(pairs), dtype=torch.int32)
    places[order] = torch.arange(len(pairs), dtype=torch.int32)
    source = order // expert_idx.shape[1]
    counts = torch.tensor([sum(expert == owner for expert, _ in pairs) for owner in range(experts)])
    # Not defined without a scale: what reads it shows.
    scales = torch.full((len(pairs),), torch.nan) if scale is None else scale[source]
    return x[source], places, counts, scales


def grouped_matmul(x: Tensor, weight: Tensor, counts: Tensor, out: torch.dtype) -> Tensor:
    """Rows `[M, K]`, the first `counts[0]` times `weight[0] [K, N]`, and so on."""
    assert x.dtype == weight.dtype and int(counts.sum()) == len(x)
    parts = [_matmul(rows, matrix) for rows, matrix in zip(x.split(counts.tolist()), weight, strict=True)]
    return torch.cat(parts).to(out)


def _matmul(x: Tensor, weight: Tensor) -> Tensor:
    if x.dtype == torch.int8:
        # float64 has every sum of products of int8 exactly.
        return (x.double() @ weight.double()).to(torch.int32)
    return x @ weight


def moe_finalize_routing(expanded: Tensor, places: Tensor, scales: Tensor) -> Tensor:
    """`drop_pad_mode` 2: weighted sum over k of the row that pair (i, k) went to."""
    assert expanded.dtype == scales.dtype
    return (expanded[places.long()].view(*scales.shape, -1) * scales[:, :, None]).sum(1)


def clipped_swiglu(x: Tensor, alpha: float, limit: float, bias: float) -> Tensor:
    """Not interleaved: the gate is the first half."""
    gate, up = x.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + bias)


def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 codes and a scale per row; a row of zeros has codes 0."""
    assert x.dtype in (torch.bfloat16, torch.float16)
    wide = x.float()
    scale = wide.abs().amax(-1) / 127
    codes = torch.round(wide / scale[..., None]).nan_to_num(0.0)
    return codes.to(torch.int8), scale


def quant_matmul(x1: Tensor, x2: Tensor, scale: Tensor, per_token: Tensor, out: torch.dtype) -> Tensor:
    """int8 `[M, K]` times int8 `[K, N]`, scale float32 `[N]`, per token float32 `[M]`."""
    assert x1.dtype == x2.dtype == torch.int8 and scale.dim() == per_token.dim() == 1
    return (_matmul(x1, x2).float() * scale * per_token[:, None]).to(out)


def mhc_pre(
    x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor, norm_eps: float, hc_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Streams `[T, n, D]` -> sub-layer input, `h_post`, and `h_res` before its normalisation."""
    assert x.dtype in (torch.bfloat16, torch.float16)
    n = x.shape[1]
    flat = x.float().flatten(1)
    mix = flat @ phi.t() * (flat.square().mean(-1, keepdim=True) + norm_eps) ** -0.5
    pre = torch.sigmoid(mix[:, :n] * alpha[0] + bias[:n]) + hc_eps
    post = 2 * torch.sigmoid(mix[:, n : 2 * n] * alpha[1] + bias[n : 2 * n])
    res = (mix[:, 2 * n :] * alpha[2] + bias[2 * n :]).view(-1, n, n)
    into = torch.einsum("tn,tnd->td", pre, x.float())
    return into.to(x.dtype), post, res


def mhc_sinkhorn(x: Tensor, eps: float, iterations: int) -> Tensor:
    norm = functional.softmax(x, dim=-1) + eps
    norm = norm / (norm.sum(-2, keepdim=True) + eps)
    for _ in range(1, iterations):
        norm = norm / (norm.sum(-1, keepdim=True) + eps)
        norm = norm / (norm.sum(-2, keepdim=True) + eps)
    return norm


def mhc_post(x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
    assert x.dtype == h_out.dtype and x.dtype in (torch.bfloat16, torch.float16)
    mixed = torch.einsum("tij,tid->tjd", h_res, x.float())
    return (mixed + h_post[:, :, None] * h_out.float()[:, None, :]).to(x.dtype)


def hc_pre(
    x: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iterations: int, norm_eps: float, hc_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Both halves in one, for 4 streams of width 4096 or 7168."""
    assert x.shape[1] == 4 and x.shape[2] in (4096, 7168)
    into, post, res = mhc_pre(x, fn, scale, base, norm_eps, hc_eps)
    return into, post, mhc_sinkhorn(res, hc_eps, iterations)


def hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    assert residual.shape[1] == 4 and residual.shape[2] in (4096, 7168)
    return mhc_post(residual, comb, x, post)
