"""How a token is drawn from logits: one rule for greedy and sampled, target and drafts.

    token at position p = argmax over tokens of  logits + temperature * gumbel(seed, p, token)

At temperature 0 that is the plain argmax; ties go to the lowest token id. The noise depends on nothing but
the seed, the absolute position and the token, so any two runs that see the same logits draw the same token.
By the Gumbel-max trick each draw follows softmax(logits / temperature).

The uniform number behind the noise comes from a keyed permutation of the integers modulo a Mersenne prime,
made of additions, multiplications and remainders whose operands stay below 2^31, so int64 never overflows.
"""

import math
import struct
from functools import lru_cache

import torch
from torch import Tensor

PRIME = 2147483647
LARGEST_UNIFORM = 1.0 - 2.0**-24


def round5(value: int) -> int:
    """x^5 modulo the prime: a permutation, because 5 does not divide PRIME - 1."""
    square = value * value % PRIME
    return square * square % PRIME * value % PRIME


def position_keys(seed: int, position: int) -> tuple[int, int]:
    """The two keys that all tokens of one position share."""
    mixed = round5((seed % PRIME + 362436069) % PRIME)
    # Floor division: a negative seed must give the same key everywhere.
    mixed = round5((mixed + seed // PRIME % PRIME + 521288629) % PRIME)
    keyed = round5((mixed + position % PRIME + 88675123) % PRIME)
    first = round5((keyed + 1013904223) % PRIME)
    return first, round5((first + 886756453) % PRIME)


def hashed(seed: int, position: int, token: int) -> int:
    """An integer in [0, PRIME), uniform over tokens, positions and seeds."""
    first, second = position_keys(seed, position)
    return round5((round5((token + first) % PRIME) + second) % PRIME)


def gumbel(seed: int, position: int, token: int) -> float:
    """The noise of one token, the plain way: the definition that the vectorised form is checked against."""
    as_float32 = _to_float32(float(hashed(seed, position, token)))
    uniform = min(_to_float32(_to_float32(as_float32 + 0.5) * 2.0**-31), LARGEST_UNIFORM)
    return -math.log(-math.log1p(-uniform))


def hashed_row(seed: int, position: int, vocab_size: int) -> Tensor:
    """[V] int64: `hashed` for all tokens of one position."""
    first, second = position_keys(seed, position)
    tokens = torch.arange(vocab_size, dtype=torch.int64)  # [V]
    return _round5_rows((_round5_rows((tokens + first) % PRIME) + second) % PRIME)


@lru_cache(maxsize=4096)
def gumbel_row(seed: int, position: int, vocab_size: int) -> Tensor:
    """[V] float64: `gumbel` for all tokens of one position. Cached, so not to be written to."""
    uniform = (hashed_row(seed, position, vocab_size).float() + 0.5) * 2.0**-31  # [V], rounded to fp32
    uniform = uniform.double().clamp(max=LARGEST_UNIFORM)  # [V]
    return -torch.log(-torch.log1p(-uniform))


def draw_scores(logits: Tensor, temperature: float, seed: int, position: int) -> Tensor:
    """[V] float64: what the argmax is taken over, for logits [V]."""
    if temperature == 0:
        return logits.double()
    return logits.double() + temperature * gumbel_row(seed, position, logits.shape[-1])


def sample_token(logits: Tensor, temperature: float, seed: int, position: int) -> int:
    """The token at absolute `position`, from logits [V]."""
    return draw_with_margin(logits, temperature, seed, position)[0]


def draw_with_margin(logits: Tensor, temperature: float, seed: int, position: int) -> tuple[int, float]:
    """The token, and by how much it won: where that is tiny, rounding may rightly choose another."""
    scores = draw_scores(logits, temperature, seed, position)  # [V]
    best, second = scores.topk(2).values.tolist()
    # torch.argmax does not promise which of several equal entries it returns.
    return int((scores == best).nonzero()[0, 0]), best - second


def _round5_rows(values: Tensor) -> Tensor:
    square = values * values % PRIME
    return square * square % PRIME * values % PRIME


def _to_float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]
