"""Top-k with one tie rule for every width: higher score first, then lower index.

On the CPU one kernel of libnextn_ops chooses. Source: docs/mathematics.md, "topk_entries".
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.graphs.ops.operator import operator

COUNTING_LIMIT = 512
"""Up to this width the quadratic comparison fuses into one loop and beats `topk` (see `topk_entries`)."""


@operator(
    "(Tensor score, SymInt k) -> Tensor",
    opaque=lambda score, k: score.new_empty((*score.shape[:-1], k), dtype=torch.int64),
)
def topk_entries(score: Tensor, k: int) -> Tensor:
    """Indices int64 `[..., k]` of the k best of `score [..., E]` fp32, k <= E.

    The chosen set is that of a stable sort on (score descending, index ascending); its order is
    unspecified. NaN counts as -inf, so that whatever a row holds, its result is k valid indices. Entries of
    -inf at the end of a row, as `indexer_topk` has them there, come last.
    """
    score = torch.where(score == score, score, -torch.inf)
    if score.shape[-1] <= COUNTING_LIMIT:
        return _by_counting(score, k)
    return _by_threshold(score, k)


def _by_counting(score: Tensor, k: int) -> Tensor:
    width = score.shape[-1]
    index = torch.arange(width, device=score.device)
    earlier = index[None, :] < index[:, None]  # [E, E]: other before own
    own, other = score[..., :, None], score[..., None, :]
    ahead = (other > own) | ((other == own) & earlier)  # [..., E, E]
    rank = ahead.to(torch.int64).sum(-1)  # [..., E]
    chosen = rank[..., None, :] == torch.arange(k, device=score.device)[:, None]  # [..., k, E]
    return (chosen.to(torch.int64) * index).sum(-1)


def _by_threshold(score: Tensor, k: int) -> Tensor:
    width = score.shape[-1]
    threshold = torch.topk(score, k, dim=-1).values[..., -1:]  # [..., 1]
    above = score > threshold
    equal = score == threshold
    vacant = k - above.to(torch.int64).sum(-1, keepdim=True)
    keep = above | (equal & (torch.cumsum(equal.to(torch.int64), -1) <= vacant))  # exactly k are set
    # Distinct keys, so that the second selection has no ties: width < 2**24 keeps them exact in fp32.
    key = torch.where(keep, (width - torch.arange(width, device=score.device)).to(torch.float32), 0.0)
    return torch.topk(key, k, dim=-1).indices
