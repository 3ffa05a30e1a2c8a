"""Mixture of experts: hash or score routing, clamped experts, one shared expert.

Source: docs/mathematics.md, "Mixture of experts".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.collectives import Parallel, reduce_sum
from nextn.graphs.ops.experts import clamped_swiglu, expert_mlp
from nextn.graphs.ops.linear import Weight, linear
from nextn.graphs.ops.routing import hash_route, score_route
from nextn.graphs.ops.rows import fp32


class Gate(nn.Module):
    """Router: fp32 scores; hash layers choose experts by token id, and weigh them by score too."""

    def __init__(self, config: ModelConfig, hashed: bool) -> None:
        super().__init__()
        self.config = config
        self.hashed = hashed
        experts, chosen = config.n_routed_experts, config.num_experts_per_tok
        self.weight: Tensor
        self.bias: Tensor
        self.tid2eid: Tensor
        self.register_buffer("weight", torch.zeros(experts, config.hidden_size))
        if hashed:
            self.register_buffer("tid2eid", torch.zeros(config.vocab_size, chosen, dtype=torch.int64))
        else:
            self.register_buffer("bias", torch.zeros(experts))

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """x `[T, H]`, ids int64 `[T]` -> expert index int64 `[T, K]`, weight fp32 `[T, K]`."""
        config = self.config
        logits = functional.linear(fp32(x), self.weight)  # [T, E]
        rest = (config.norm_topk_prob, config.routed_scaling_factor)
        if self.hashed:
            return hash_route(logits, ids, self.tid2eid, *rest)
        return score_route(logits, self.bias, config.num_experts_per_tok, *rest)


class Experts(nn.Module):
    """Stacked experts: `w13 [E, 2I, H]` (gate rows, then up rows), `w2 [E, H, I]`; E absent if shared."""

    def __init__(self, stack: tuple[int, ...], hidden: int, inner: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.w13 = Weight((*stack, 2 * inner, hidden), dtype)
        self.w2 = Weight((*stack, hidden, inner), dtype)


class MixtureOfExperts(nn.Module):
    """Routed experts plus the shared expert, which is clamped as well."""

    def __init__(self, config: ModelConfig, hashed: bool, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__()
        self.parallel = parallel
        self.limit = config.swiglu_limit
        self.gate = Gate(config, hashed)
        inner = config.moe_intermediate_size
        self.experts = Experts((config.n_routed_experts,), config.hidden_size, inner, dtype)
        self.shared_experts = Experts((), config.hidden_size, inner * config.n_shared_experts, dtype)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """x `[T, H]`, ids int64 `[T]` of the same rows -> fp32 `[T, H]`."""
        index, weight = self.gate(x, ids)
        routed = expert_mlp(
            x, index, weight, gate_up=self.experts.w13, down=self.experts.w2, limit=self.limit
        )
        hidden = clamped_swiglu(linear(x, self.shared_experts.w13), self.limit)
        shared = linear(hidden, self.shared_experts.w2)
        return reduce_sum(routed + fp32(shared), self.parallel)
