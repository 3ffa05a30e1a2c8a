"""Token draw with shared noise: one rule for greedy and sampled, target and draft .

The token at absolute position p is argmax(logits + T * gumbel(seed, p, token)). The noise depends on
nothing else, so a draft drawn from NextN's logits uses the very noise verification will use, and
speculative output equals plain output token for token at equal seed.

The hash is built from int64 add, multiply and remainder only (GE has no xor or shift), with operands
below 2**31 so that no product overflows. x -> x**5 permutes the residues modulo the prime 2**31 - 1.

On the CPU one kernel of libnextn_ops draws, which skips the noise of greedy rows.

Source: docs/mathematics.md, "Sampling noise".
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.ops.collectives import ONE_RANK, gather_argmax
from nextn.graphs.ops.operator import operator
from nextn.graphs.ops.rows import fp32
from nextn.runtime.contract.blocks import TEMPERATURE_ONE

PRIME = 2147483647


@operator(
    "(Tensor logits, Tensor seed, Tensor position, Tensor temperature) -> Tensor",
    opaque=lambda logits, seed, position, temperature: torch.empty_like(position),
)
def sample_token(logits: Tensor, seed: Tensor, position: Tensor, temperature: Tensor) -> Tensor:
    """Token ids int64 `[B, V]` from `logits` fp32 `[B, V, vocab]`.

    seed int64 `[B]` >= 0; position int64 `[B, V]`, the absolute position the drawn token will have;
    temperature int64 `[B]` in fixed point (`TEMPERATURE_ONE` = 1.0, 0 = greedy).
    """
    scale = fp32(temperature) * (1.0 / TEMPERATURE_ONE)  # [B]
    noise = gumbel_noise(seed, position, logits.shape[-1])  # [B, V, vocab]
    return gather_argmax(logits + scale[:, None, None] * noise, ONE_RANK)


def gumbel_noise(seed: Tensor, position: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise fp32 `[B, V, vocab]`, finite; a pure function of (seed, position, token)."""
    x = noise_integers(seed, position, vocab_size)
    uniform = torch.clamp((fp32(x) + 0.5) * 2.0**-31, max=1.0 - 2.0**-24)
    return -torch.log(-_log_one_minus(uniform))


def noise_integers(seed: Tensor, position: Tensor, vocab_size: int) -> Tensor:
    """The integers that become the noise: int64 `[B, V, vocab]`, uniform in [0, PRIME)."""
    key = _fifth_power((seed % PRIME + 362436069) % PRIME)
    high = torch.div(seed, PRIME, rounding_mode="floor")
    key = _fifth_power((key + high % PRIME + 521288629) % PRIME)  # [B]
    key = _fifth_power((key[:, None] + position % PRIME + 88675123) % PRIME)
    first = _fifth_power((key + 1013904223) % PRIME)  # [B, V]
    second = _fifth_power((first + 886756453) % PRIME)
    token = torch.arange(vocab_size, device=position.device)
    x = _fifth_power((token + first[..., None]) % PRIME)  # [B, V, vocab]
    return _fifth_power((x + second[..., None]) % PRIME)


def _fifth_power(x: Tensor) -> Tensor:
    square = x * x % PRIME
    return square * square % PRIME * x % PRIME


def _log_one_minus(x: Tensor) -> Tensor:
    """log(1 - x) for fp32 x in (0, 1), compensated: the naive formula loses the small x of large noise."""
    rest = 1.0 - x
    rounded = rest - 1.0
    return torch.where(rounded == 0.0, -x, torch.log(rest) * (-x / torch.where(rounded == 0.0, 1.0, rounded)))
