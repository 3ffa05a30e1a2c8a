"""The compressed entries that a row attends to: the best by the indexer's score.

Source: docs/mathematics.md, "Indexer and the tie rule".
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from nextn.graphs.ops.operator import operator
from nextn.graphs.ops.rows import fp32, read_rows
from nextn.graphs.ops.topk_entries import topk_entries


@operator(
    "(Tensor query, Tensor weight, Tensor entries, Tensor slots, Tensor complete, int topk, int capacity)"
    " -> Tensor"
)
def indexer_topk(
    query: Tensor,
    weight: Tensor,
    entries: Tensor,
    slots: Tensor,
    complete: Tensor,
    topk: int,
    capacity: int,
) -> Tensor:
    """Entry numbers int64 `[B, V, topk]`; hidden ones fill up behind those a row may see.

    query fp32 `[B, V, NI, DI]` and weight fp32 `[B, V, NI]` of every index head; entries
    `[(slots + 1) * capacity, DI]`, those of `slots` int64 `[B]` consecutive; complete int64 `[B, V]`: how
    many entries each row may see.
    """
    batch, rows, heads, width = query.shape
    number = torch.arange(capacity)
    keys = fp32(read_rows(entries, slots[:, None] * capacity + number))  # [B, E, DI]
    flat = query.reshape(batch, rows * heads, width)
    score = functional.relu(torch.bmm(flat, keys.transpose(1, 2))).view(batch, rows, heads, capacity)
    score = (score * weight[..., None]).sum(2)  # [B, V, E]
    return topk_entries(torch.where(number < complete[:, :, None], score, -torch.inf), topk)
