"""Building blocks: linear, norm, rotary tables, residual-stream mixing and the mixture of experts."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from .fused import read_streams, rms_norm, sinkhorn, swiglu, write_streams
from .matmul import linear


@dataclass
class ForwardOptions:
    """Training switches and ablations of one forward pass."""

    sparse: bool = True  # False: attend to every compressed C4 entry, without the indexer's choice
    indexer_losses: list[Tensor] | None = None  # a list asks every indexer to append its distillation loss
    hidden_ratio: int = 0  # ablation and early training: layers of this ratio see their window only
    random_choice: bool = False  # ablation: the indexer chooses at random
    hash_ids: Tensor | None = None  # ablation: ids that the hash router looks up instead
    drop_routed: str = ""  # ablation: "hash" or "score" layers lose their routed experts
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int, gain: float = 0.7):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * gain / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rotary_table(config: SimpleNamespace, compressed: bool) -> Tensor:
    """(cos, sin) per position and pair, [positions, pairs, 2]; only compressed layers use YaRN."""
    width = config.qk_rope_head_dim
    base = config.compress_rope_theta if compressed else config.rope_theta
    frequencies = base ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    if compressed:
        yarn = config.rope_scaling

        def pair_turning(times: float) -> float:
            span = yarn["original_max_position_embeddings"] / (times * 2 * math.pi)
            return width * math.log(span) / (2 * math.log(base))

        low = max(math.floor(pair_turning(yarn["beta_fast"])), 0)
        high = min(math.ceil(pair_turning(yarn["beta_slow"])), width - 1)
        kept = 1 - ((torch.arange(width // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
        frequencies = frequencies / yarn["factor"] * (1 - kept) + frequencies * kept
    angles = torch.arange(config.max_position_embeddings).float()[:, None] * frequencies
    return torch.stack([angles.cos(), angles.sin()], -1).contiguous()


class StreamMixer(nn.Module):
    """Reads one vector from the four residual streams and says how to write the update back (mHC).

    The released names are flat (`hc_attn_fn`, ...), so `attach` registers them on the owning module.
    """

    @staticmethod
    def attach(owner: nn.Module, name: str, config: SimpleNamespace, index: int) -> None:
        streams, width = config.hc_mult, config.hc_mult * config.hidden_size
        rows = (2 + streams) * streams
        # Reading mostly stream (index mod 4) and keeping the streams apart lets them specialise; a zero base
        # would average them from the start.
        base = torch.zeros(rows)
        base[:streams] = -1.0
        base[index % streams] = 1.0
        base[2 * streams :] = 3 * torch.eye(streams).flatten()
        owner.register_parameter(f"hc_{name}_fn", nn.Parameter(torch.randn(rows, width) * 0.004))
        owner.register_parameter(f"hc_{name}_base", nn.Parameter(base))
        owner.register_parameter(f"hc_{name}_scale", nn.Parameter(torch.ones(3)))

    @staticmethod
    def read(owner: nn.Module, name: str, config: SimpleNamespace, streams: Tensor):
        """streams [rows, 4, hidden] -> (input [rows, hidden], write [rows, 4], mix [rows, 16])."""
        fn, base, scale = (getattr(owner, f"hc_{name}_{part}") for part in ("fn", "base", "scale"))
        m = config.hc_mult
        flat = rms_norm(streams.flatten(1), None, config.rms_norm_eps)  # [rows, 4 * hidden]
        scales = torch.cat([scale[0].expand(m), scale[1].expand(m), scale[2].expand(m * m)])
        logits = F.linear(flat, fn) * scales + base  # [rows, 24]
        read = torch.sigmoid(logits[:, :m]) + config.hc_eps
        write = 2 * torch.sigmoid(logits[:, m : 2 * m])
        mix = sinkhorn(logits[:, 2 * m :], config.hc_sinkhorn_iters, config.hc_eps)
        return read_streams(streams, read), write, mix


class HeadMixed(nn.Module):
    """A module that reads its final hidden state from the four streams."""

    hc_head_fn: nn.Parameter  # [4, 4 * hidden]
    hc_head_base: nn.Parameter  # [4]
    hc_head_scale: nn.Parameter  # [1]


def attach_head_mixer(owner: HeadMixed, config: SimpleNamespace) -> None:
    streams = config.hc_mult
    owner.hc_head_fn = nn.Parameter(torch.randn(streams, streams * config.hidden_size) * 0.004)
    owner.hc_head_base = nn.Parameter(torch.zeros(streams))
    owner.hc_head_scale = nn.Parameter(torch.ones(1))


def read_head(owner: HeadMixed, config: SimpleNamespace, streams: Tensor) -> Tensor:
    """streams [rows, 4, hidden] -> [rows, hidden], before the final norm."""
    flat = rms_norm(streams.flatten(1), None, config.rms_norm_eps)
    read = torch.sigmoid(F.linear(flat, owner.hc_head_fn) * owner.hc_head_scale + owner.hc_head_base)
    return read_streams(streams, read + config.hc_eps)


class _GatherRows(Function):
    """Rows grouped by expert; the backward adds the copies of one row without a slow scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
        ctx.inverse, ctx.copies = inverse, copies
        return x.index_select(0, order // copies)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad.index_select(0, ctx.inverse).unflatten(0, (-1, ctx.copies)).sum(1), None, None, None


class _Permute(Function):
    @staticmethod
    def forward(ctx, x: Tensor, inverse: Tensor, order: Tensor) -> Tensor:
        ctx.order = order
        return x.index_select(0, inverse)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad.index_select(0, ctx.order), None, None


class Gate(nn.Module):
    """Scores every expert; hash layers take the choice, not the weight, from a table over token ids."""

    tid2eid: Tensor  # [vocab, k], hash layers only
    bias: Tensor  # [experts], score layers only

    def __init__(self, config: SimpleNamespace, hashed: bool):
        super().__init__()
        self.config, self.hashed = config, hashed
        self.weight = nn.Parameter(torch.randn(config.n_routed_experts, config.hidden_size) * 0.02)
        if hashed:
            table = torch.zeros(config.vocab_size, config.num_experts_per_tok, dtype=torch.long)
            self.register_buffer("tid2eid", table)
        else:
            self.register_buffer("bias", torch.zeros(config.n_routed_experts))

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """x [rows, hidden] -> (weights [rows, k], experts [rows, k])."""
        scores = F.softplus(F.linear(x, self.weight)).sqrt()  # [rows, experts]
        if self.hashed:
            chosen = self.tid2eid[ids]
        else:
            chosen = (scores.detach() + self.bias).topk(self.config.num_experts_per_tok, -1).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.config.routed_scaling_factor
        return weights, chosen


class SharedExpert(nn.Module):
    def __init__(self, config: SimpleNamespace):
        super().__init__()
        hidden, width = config.hidden_size, config.moe_intermediate_size
        self.w1, self.w3, self.w2 = Linear(hidden, width), Linear(hidden, width), Linear(width, hidden, 0.35)


class MixtureOfExperts(nn.Module):
    """`experts_w13` stacks w1 over w3 of every expert; the export splits them into the released names."""

    def __init__(self, config: SimpleNamespace, hashed: bool):
        super().__init__()
        self.config = config
        experts, hidden, width = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        self.gate = Gate(config, hashed)
        self.experts_w13 = nn.Parameter(torch.randn(experts, 2 * width, hidden) * 0.7 / math.sqrt(hidden))
        self.experts_w2 = nn.Parameter(torch.randn(experts, hidden, width) * 0.35 / math.sqrt(width))
        self.shared_experts = SharedExpert(config)
        self.load = torch.zeros(experts)  # rows per expert in the last forward, for balancing the gate bias

    def forward(self, x: Tensor, ids: Tensor, options: ForwardOptions) -> Tensor:
        """x [rows, hidden], ids [rows] -> [rows, hidden]."""
        limit, copies = self.config.swiglu_limit, self.config.num_experts_per_tok
        shared = self.shared_experts
        hidden = linear(x, torch.cat([shared.w1.weight, shared.w3.weight]))
        common = shared.w2(swiglu(hidden, limit))
        if options.drop_routed == ("hash" if self.gate.hashed else "score"):
            return common
        weights, chosen = self.gate(x, ids)
        flat = chosen.flatten()  # [rows * k]
        order = flat.argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel())
        counts = torch.bincount(flat, minlength=self.config.n_routed_experts)
        self.load = counts.float()
        groups = _GatherRows.apply(x, order, inverse, copies).split(counts.tolist())
        w13, w2 = self.experts_w13.unbind(0), self.experts_w2.unbind(0)
        outputs = [linear(swiglu(linear(rows, w13[e]), limit), w2[e]) for e, rows in enumerate(groups)]
        routed = _Permute.apply(torch.cat(outputs), inverse, order)
        routed = routed.unflatten(0, (-1, copies))  # [rows, k, hidden]
        return common + torch.bmm(weights.unsqueeze(1), routed).squeeze(1)


def mix_update(update: Tensor, streams: Tensor, write: Tensor, mix: Tensor) -> Tensor:
    """Write a sub-layer's output [rows, hidden] into the streams [rows, 4, hidden]."""
    return write_streams(update, streams, write, mix)
