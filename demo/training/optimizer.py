"""Muon for matrices, AdamW for the rest."""

from collections import defaultdict

import torch
from torch import Tensor, nn

ADAM_MARKS = ("embed.", "head.", "hc_", "ffn.gate.", "ape", "weights_proj")
SLOW_MARKS = ("_fn", "gate.weight")  # stream mixers and routers move at a third of the Adam rate
INDEXER_MARK = ".indexer."
MOMENTUM = 0.95
NEWTON_SCHULZ_STEPS = 5
LARGEST_ADAM_NORM = 1.0


def orthogonalise(matrices: Tensor) -> Tensor:
    """Push all singular values of a batch [count, rows, columns] towards one (Newton-Schulz in bf16)."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = (x.mT if tall else x).contiguous()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return (x.mT if tall else x).float()


class Muon:
    """Momentum with orthogonalised steps; equal shapes are stacked into one batched iteration."""

    def __init__(self, parameters: list[Tensor], rate: float, decay: float):
        self.parameters, self.rate, self.decay = parameters, rate, decay
        self.momentum = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One step at `scale` times the base rate; parameters without a gradient stay where they are."""
        groups: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for parameter, momentum in zip(self.parameters, self.momentum, strict=True):
            if parameter.grad is not None:
                momentum.lerp_(parameter.grad, 1 - MOMENTUM)
                groups[parameter.shape].append((parameter, torch.lerp(parameter.grad, momentum, MOMENTUM)))
        for shape, members in groups.items():
            stacked = torch.stack([update for _, update in members]).view(-1, *shape[-2:])
            updates = orthogonalise(stacked).view(len(members), *shape)
            size = self.rate * scale * max(1.0, shape[-2] / shape[-1]) ** 0.5
            for (parameter, _), update in zip(members, updates, strict=True):
                parameter.mul_(1 - self.decay * scale).add_(update, alpha=-size)


class Optimizer:
    """Both optimisers over the trainable parameters of a module."""

    def __init__(self, module: nn.Module, muon_rate: float, adam_rate: float, muon_decay: float = 0.0):
        matrices: list[Tensor] = []
        fast: list[Tensor] = []
        slow: list[Tensor] = []
        self.indexer: list[Tensor] = []
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if INDEXER_MARK in name:
                self.indexer.append(parameter)
            if parameter.dim() > 1 and not any(mark in name for mark in ADAM_MARKS):
                matrices.append(parameter)
            else:
                (slow if any(mark in name for mark in SLOW_MARKS) else fast).append(parameter)
        self.others = fast + slow
        self.parameters = matrices + self.others
        self.muon = Muon(matrices, muon_rate, muon_decay)
        groups = [{"params": slow, "base": adam_rate / 3}, {"params": fast, "base": adam_rate}]
        self.adam = torch.optim.AdamW(groups, lr=adam_rate, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0)

    def step(self, scale: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.others, LARGEST_ADAM_NORM)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * scale
        self.adam.step()
        self.muon.step(scale)
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> dict:
        return {"momentum": self.muon.momentum, "adam": self.adam.state_dict()}

    def load_state(self, state: dict) -> None:
        for mine, saved in zip(self.muon.momentum, state["momentum"], strict=True):
            mine.copy_(saved)
        self.adam.load_state_dict(state["adam"])
