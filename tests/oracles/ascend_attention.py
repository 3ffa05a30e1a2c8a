"""What Ascend's operators for DeepSeek-V4's attention compute, from the pages of CANN's operator package.

Nobody here has seen one run. Written as the pages are, row by row; arithmetic is float32, results have the
dtype of the query.
"""

from __future__ import annotations

import torch
from torch import Tensor

WINDOW_LEFT = 127
METADATA_WORDS = 1024


def paged_rows(cache: Tensor, table: Tensor, positions: list[int]) -> Tensor:
    """Rows `[P, D]` at positions of one request: cache `[blocks, block, 1, D]`, table `[columns]`."""
    block = cache.shape[1]
    assert block % 16 == 0 and block <= 1024 and cache.shape[2] == 1
    assert 0 <= min(positions) and max(positions) // block < len(table)
    assert bool((0 <= table).all()) and bool((table < len(cache)).all())
    return torch.stack([cache[int(table[place // block]), place % block, 0] for place in positions]).float()


def attention_metadata(
    heads: int, width: int, batch: int, rows: int, topk: int, ratio: int, compressed: bool, used: Tensor
) -> Tensor:
    """Opaque to everybody but the attention, which wants that of its own call."""
    words = [heads, width, batch, rows, topk, ratio, int(compressed), *used.tolist()]
    metadata = torch.zeros(METADATA_WORDS, dtype=torch.int32)
    metadata[: len(words)] = torch.tensor(words, dtype=torch.int32)
    return metadata


def sparse_attention(
    q: Tensor,
    ori_kv: Tensor,
    ori_table: Tensor,
    cmp_kv: Tensor | None,
    cmp_table: Tensor | None,
    indices: Tensor | None,
    cu_seqlens_q: Tensor,
    seqused_kv: Tensor,
    sinks: Tensor,
    metadata: Tensor,
    scale: float,
    ratio: int,
) -> Tensor:
    """Layouts TND and PA_ND: q `[T, N, D]`, indices `[T, 1, K]`."""
    assert q.dtype == ori_kv.dtype == torch.bfloat16 and q.shape[1:] == (64, 512)
    assert all(one.dtype == torch.int32 for one in (ori_table, cu_seqlens_q, seqused_kv, metadata))
    batch, rows = len(seqused_kv), int(cu_seqlens_q[1])
    topk = 0 if indices is None else indices.shape[-1]
    expected = attention_metadata(64, 512, batch, rows, topk, ratio, cmp_kv is not None, seqused_kv)
    assert torch.equal(metadata, expected), "the metadata of another call"
    if cmp_kv is not None:
        assert ratio in (4, 128) and cmp_kv.dtype == q.dtype and cmp_kv.shape[1] == ori_kv.shape[1]
    output = torch.empty_like(q)
    for b in range(batch):
        first, last = int(cu_seqlens_q[b]), int(cu_seqlens_q[b + 1])
        for t in range(first, last):
            position = int(seqused_kv[b]) - (last - t)
            window = list(range(max(position - WINDOW_LEFT, 0), position + 1))
            seen = [paged_rows(ori_kv, ori_table[b], window)]
            if cmp_kv is not None:
                assert cmp_table is not None
                numbers = _visible_entries(
                    (position + 1) // ratio, None if indices is None else indices[t, 0]
                )
                if numbers:
                    seen.append(paged_rows(cmp_kv, cmp_table[b], numbers))
            output[t] = _attend(q[t].float(), torch.cat(seen), sinks, scale).to(q.dtype)
    return output


def _visible_entries(complete: int, indices: Tensor | None) -> list[int]:
    if indices is None:
        return list(range(complete))
    assert indices.dtype == torch.int32 and indices.shape == (512,)
    numbers = []
    for number in indices.tolist()[:complete]:
        if number == -1:
            break
        if number < complete:
            numbers.append(number)
    return numbers


def _attend(q: Tensor, rows: Tensor, sinks: Tensor, scale: float) -> Tensor:
    """q `[N, D]`, rows `[S, D]` -> `[N, D]`; the sink starts the sum of each head's softmax."""
    scores = q @ rows.T * scale
    largest = torch.maximum(scores.max(1).values, sinks)[:, None]
    weights = torch.exp(scores - largest)
    return weights @ rows / (weights.sum(1, keepdim=True) + torch.exp(sinks[:, None] - largest))


def lightning_indexer(
    query: Tensor, key: Tensor, weights: Tensor, lengths: Tensor, table: Tensor, count: int
) -> Tensor:
    """Layouts BSND and PA_BSND, no mask: query `[B, 1, N, D]`, weights `[B, 1, N]` -> `[B, 1, 1, count]`."""
    assert query.dtype == key.dtype == weights.dtype == torch.bfloat16 and query.shape[2:] == (64, 128)
    assert lengths.dtype == table.dtype == torch.int32 and bool((lengths > 0).all())
    chosen = torch.full((len(query), 1, 1, count), -1, dtype=torch.int32)
    for b, length in enumerate(lengths.tolist()):
        rows = paged_rows(key, table[b], list(range(length)))
        relevance = torch.relu(query[b, 0].float() @ rows.T)  # [N, S]
        score = (relevance * weights[b, 0].float()[:, None]).sum(0)
        best = torch.topk(score, min(count, length)).indices
        chosen[b, 0, 0, : len(best)] = best.to(torch.int32)
    return chosen


def compressor(
    x: Tensor,
    wkv: Tensor,
    wgate: Tensor,
    state_cache: Tensor,
    ape: Tensor,
    norm_weight: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    table: Tensor,
    seqused: Tensor,
    start_pos: Tensor,
    ratio: int,
    overlap: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Rotary mode 2 and cache mode 1: compressed rows `[B, ceil(S / ratio), D]` and the state afterwards."""
    assert all(one.dtype == torch.bfloat16 for one in (x, wkv, wgate, norm_weight, rope_sin, rope_cos))
    assert all(one.dtype == torch.int32 for one in (table, seqused, start_pos))
    assert state_cache.dtype == ape.dtype == torch.float32
    batch, rows, _ = x.shape
    width, block = norm_weight.shape[0], state_cache.shape[1]
    state, compressed = state_cache.clone(), torch.zeros(batch, -(-rows // ratio), width, dtype=x.dtype)
    for b in range(batch):
        start, made = int(start_pos[b]), 0
        for s in range(int(seqused[b])):
            position = start + s
            row = x[b, s].float()
            score = wgate.float() @ row + ape[position % ratio]
            owner = int(table[b, position // block])
            assert owner > 0
            state[owner, position % block] = torch.cat([wkv.float() @ row, score])
            if position % ratio == ratio - 1:
                pooled = _pool(state, table[b], position // ratio, ratio, overlap, width)
                normed = pooled * torch.rsqrt(pooled.square().mean() + eps) * norm_weight.float()
                turned = _apply_rope(normed, rope_cos[b, made].float(), rope_sin[b, made].float())
                compressed[b, made] = turned.to(x.dtype)
                made += 1
    return compressed, state


def _pool(state: Tensor, table: Tensor, number: int, ratio: int, overlap: int, width: int) -> Tensor:
    """Of entry `number`: softmax over its positions by channel; C4 adds the previous block's A half."""
    channels = overlap * width
    block = state.shape[1]

    def halves(first: int, half: int) -> tuple[Tensor, Tensor]:
        rows = torch.stack([state[int(table[p // block]), p % block] for p in range(first, first + ratio)])
        columns = slice(half * width, (half + 1) * width)
        return rows[:, :channels][:, columns], rows[:, channels:][:, columns]

    kv, score = halves(number * ratio, overlap - 1)
    if overlap == 2 and number > 0:
        before = halves((number - 1) * ratio, 0)
        kv, score = torch.cat([before[0], kv]), torch.cat([before[1], score])
    return (kv * torch.softmax(score, dim=0)).sum(0)


def _apply_rope(row: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The last channels, in adjacent pairs."""
    still, turning = row[: -len(cos)], row[-len(cos) :]
    partner = torch.stack([-turning[1::2], turning[0::2]], dim=-1).flatten()
    return torch.cat([still, turning * cos + partner * sin])
