"""What Ascend's fused operators compute, from their published descriptions (torch_npu's docstrings, and the
pages of CANN's operator libraries); nobody here has seen one run.

Where a description says `round`, it is taken to mean half to even; among equal scores of a top-k the choice
is torch's. Arithmetic is float32 and results have the dtype of the input, as the descriptions have it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tests.oracles.described import Interface, described
from tests.oracles.ge_dtypes import ENGINE_DTYPES

_TORCH_DTYPES = {None: torch.int8, 3: torch.int32, 15: torch.bfloat16}
"""By torch's own numbers, as torch_npu's schemas name them."""

_GROUPED_DTYPES = {0: torch.float16, 1: torch.bfloat16, 2: torch.int32}
"""By the numbers of GroupedMatmul's own attribute."""


@described(Interface("npu::npu_rms_norm", {"x": "input"}), "RmsNorm")
def rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    assert x.dtype == gamma.dtype, "gamma has the dtype of x"
    wide = x.float()
    rstd = 1.0 / torch.sqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(x.dtype), rstd


@described(
    Interface(
        "npu::npu_rotary_mul",
        {"x": "input", "cos": "r1", "sin": "r2"},
        fixed={"rotary_mode": "interleave"},
    ),
    Interface("RotaryPositionEmbedding", fixed={"mode": 1}),
)
def rotary_interleaved(x: Tensor, cos: Tensor, sin: Tensor, rotate: Tensor | None) -> Tensor:
    """`[B, S, N, D]` with angles `[1, S, 1, D]`; `rotate` is a matrix `[D, D]` in place of the mode's own."""
    assert x.dim() == 4 and cos.shape == sin.shape == (1, x.shape[1], 1, x.shape[3])
    assert x.shape[0] * x.shape[2] < 1000 and x.shape[3] < 896 and x.shape[3] % 2 == 0
    if rotate is None:
        turned = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
    else:
        turned = x @ rotate
    return x * cos + turned * sin


@described(
    "npu::npu_moe_gating_top_k",
    "MoeGatingTopK",
    norm_type=2,
    group_count=1,
    k_group=1,
    out_flag=False,
    renorm=0,
)
def moe_gating_top_k(
    x: Tensor,
    k: int,
    bias: Tensor | None,
    input_ids: Tensor | None,
    tid2eid: Tensor | None,
    routed_scaling_factor: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Square root of softplus, one group: weights `[T, K]`, experts int32 `[T, K]`, scores `[T, E]`."""
    score = torch.sqrt(functional.softplus(x.float()))
    if tid2eid is not None:
        assert input_ids is not None and tid2eid.shape[1] == k
        index = tid2eid[input_ids]
    else:
        index = torch.topk(score if bias is None else score + bias, k, dim=-1).indices
    chosen = torch.take_along_dim(score, index.long(), dim=1)
    weight = chosen / (chosen.sum(-1, keepdim=True) + eps) * routed_scaling_factor
    return weight.to(x.dtype), index.to(torch.int32), score


@described(
    "npu::npu_moe_init_routing_v2",
    "MoeInitRoutingV3",
    drop_pad_mode=0,
    quant_mode=-1,
    row_idx_type=0,
    expert_tokens_num_type=1,
    expert_tokens_num_flag=True,
)
def moe_init_routing(
    x: Tensor,
    expert_idx: Tensor,
    scale: Tensor | None,
    expert_num: int,
    active_num: int,
    active_expert_range: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows sorted by expert, where each (row, k) went (by rows), rows of each expert, and rows' scales."""
    assert expert_idx.dtype == torch.int32
    assert active_num == expert_idx.numel() and list(active_expert_range) == [0, expert_num]
    pairs = [(int(expert), place) for place, expert in enumerate(expert_idx.flatten())]
    order = torch.tensor([place for _, place in sorted(pairs)])
    places = torch.empty(len(pairs), dtype=torch.int32)
    places[order] = torch.arange(len(pairs), dtype=torch.int32)
    source = order // expert_idx.shape[1]
    counts = torch.tensor([sum(expert == owner for expert, _ in pairs) for owner in range(expert_num)])
    # Not defined without a scale: what reads it shows.
    scales = torch.full((len(pairs),), torch.nan) if scale is None else scale[source]
    return x[source], places, counts, scales


@described(
    Interface(
        "npu::npu_grouped_matmul",
        {"out": "output_dtype"},
        {
            "x": lambda x, given: x[0],
            "weight": lambda weight, given: weight[0],
            "out": lambda dtype, given: given["x"][0].dtype if dtype is None else _TORCH_DTYPES[dtype],
        },
    ),
    Interface(
        "GroupedMatmul",
        {"x": "x0", "weight": "weight0", "out": "dtype"},
        {
            "weight": lambda weight, given: weight.transpose(1, 2) if given["transpose_weight"] else weight,
            "out": lambda dtype, given: _GROUPED_DTYPES.get(dtype, given["x0"].dtype),
        },
        fixed={"transpose_x": False},
    ),
    split_item=3,
    group_type=0,
    group_list_type=1,
    act_type=0,
)
def grouped_matmul(x: Tensor, weight: Tensor, group_list: Tensor, out: torch.dtype) -> Tensor:
    """Rows `[M, K]`, the first `group_list[0]` times `weight[0] [K, N]`, and so on."""
    assert x.dtype == weight.dtype and int(group_list.sum()) == len(x)
    groups = zip(x.split(group_list.tolist()), weight, strict=True)
    parts = [_matmul(rows, matrix) for rows, matrix in groups]
    return torch.cat(parts).to(out)


def _matmul(x: Tensor, weight: Tensor) -> Tensor:
    if x.dtype == torch.int8:
        # float64 has every sum of products of int8 exactly.
        return (x.double() @ weight.double()).to(torch.int32)
    return x @ weight


@described(
    Interface(
        "npu::npu_moe_finalize_routing",
        {"expanded": "expanded_permuted_rows", "places": "expanded_src_to_dst_row"},
    ),
    Interface(
        "MoeFinalizeRoutingV2",
        {"expanded": "expanded_x", "places": "expanded_row_idx"},
        check=lambda given: given["k"] == given["scales"].shape[1],
    ),
    drop_pad_mode=2,
)
def moe_finalize_routing(expanded: Tensor, places: Tensor, scales: Tensor) -> Tensor:
    """Weighted sum over k of the row that pair (i, k) went to."""
    assert expanded.dtype == scales.dtype
    return (expanded[places.long()].view(*scales.shape, -1) * scales[:, :, None]).sum(1)


@described("npu::npu_clipped_swiglu", "ClippedSwiglu", dim=-1, interleaved=False)
def clipped_swiglu(x: Tensor, alpha: float, limit: float, bias: float) -> Tensor:
    """Not interleaved: the gate is the first half."""
    gate, up = x.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + bias)


@described(
    Interface("npu::npu_dynamic_quant", {"x": "input"}, fixed={"dst_type": None}),
    # Not written where it is the default, int8.
    Interface("DynamicQuant", check=lambda given: not given.is_written("dst_type")),  # type: ignore[attr-defined]
)
def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 codes and a scale per row; a row of zeros has codes 0."""
    assert x.dtype in (torch.bfloat16, torch.float16)
    wide = x.float()
    scale = wide.abs().amax(-1) / 127
    codes = torch.round(wide / scale[..., None]).nan_to_num(0.0)
    return codes.to(torch.int8), scale


@described(
    Interface(
        "npu::npu_quant_matmul",
        {"out": "output_dtype"},
        {"out": lambda dtype, given: _TORCH_DTYPES[dtype]},
    ),
    Interface(
        "QuantBatchMatmulV3",
        {"out": "dtype"},
        {
            "x2": lambda x2, given: x2.t() if given["transpose_x2"] else x2,
            "out": lambda dtype, given: ENGINE_DTYPES[dtype],
        },
        fixed={"transpose_x1": False},
    ),
)
def quant_matmul(x1: Tensor, x2: Tensor, scale: Tensor, pertoken_scale: Tensor, out: torch.dtype) -> Tensor:
    """int8 `[M, K]` times int8 `[K, N]`, scale float32 `[N]`, per token float32 `[M]`."""
    assert x1.dtype == x2.dtype == torch.int8 and scale.dim() == pertoken_scale.dim() == 1
    return (_matmul(x1, x2).float() * scale * pertoken_scale[:, None]).to(out)


@described("npu::npu_mhc_pre", "MhcPre", out_flag=0)
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


@described("npu::npu_mhc_sinkhorn", "MhcSinkhorn")
def mhc_sinkhorn(x: Tensor, eps: float, num_iters: int) -> Tensor:
    norm = functional.softmax(x, dim=-1) + eps
    norm = norm / (norm.sum(-2, keepdim=True) + eps)
    for _ in range(1, num_iters):
        norm = norm / (norm.sum(-1, keepdim=True) + eps)
        norm = norm / (norm.sum(-2, keepdim=True) + eps)
    return norm


@described("npu::npu_mhc_post", "MhcPost")
def mhc_post(x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
    assert x.dtype == h_out.dtype and x.dtype in (torch.bfloat16, torch.float16)
    mixed = torch.einsum("tij,tid->tjd", h_res, x.float())
    return (mixed + h_post[:, :, None] * h_out.float()[:, None, :]).to(x.dtype)


@described("custom::npu_hc_pre", "HcPre", hc_mult=4)
def hc_pre(
    x: Tensor,
    hc_fn: Tensor,
    hc_scale: Tensor,
    hc_base: Tensor,
    hc_sinkhorn_iters: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Both halves in one, for 4 streams of width 4096 or 7168."""
    assert x.shape[1] == 4 and x.shape[2] in (4096, 7168)
    into, post, res = mhc_pre(x, hc_fn, hc_scale, hc_base, norm_eps, hc_eps)
    return into, post, mhc_sinkhorn(res, hc_eps, hc_sinkhorn_iters)


@described("custom::npu_hc_post", "HcPost")
def hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    assert residual.shape[1] == 4 and residual.shape[2] in (4096, 7168)
    return mhc_post(residual, comb, x, post)
