"""What Ascend's operators for DeepSeek-V4's attention compute, from the pages of CANN's operator package.

Nobody here has seen one run. Written as the pages are, row by row; arithmetic is float32, results have the
dtype of the query.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.oracles.described import Given, Interface, described

WINDOW_LEFT = 127
METADATA_WORDS = 1024

_READING = {
    "ori_mask_mode": 4,
    "cmp_mask_mode": 3,
    "ori_win_left": WINDOW_LEFT,
    "ori_win_right": 0,
    "layout_q": "TND",
    "layout_kv": "PA_ND",
}


def _strides(given: Given) -> bool:
    """Caches are said to lie without gaps."""
    strides = {"ori_kv": given["ori_kv_stride"], "cmp_kv": given["cmp_kv_stride"]}
    return strides == {name: 0 if given.get(name) is None else given[name][0].numel() for name in strides}


def paged_rows(cache: Tensor, table: Tensor, positions: list[int]) -> Tensor:
    """Rows `[P, D]` at positions of one request: cache `[blocks, block, 1, D]`, table `[columns]`."""
    block = cache.shape[1]
    assert block % 16 == 0 and block <= 1024 and cache.shape[2] == 1
    assert 0 <= min(positions) and max(positions) // block < len(table)
    assert bool((0 <= table).all()) and bool((table < len(cache)).all())
    return torch.stack([cache[int(table[place // block]), place % block, 0] for place in positions]).float()


@described(
    "custom::npu_sparse_attn_sharedkv_metadata",
    "SparseAttnSharedkvMetadata",
    unused=("cu_seqlens_q",),
    num_heads_kv=1,
    has_ori_kv=True,
    ori_topk=0,
    **_READING,
)
def attention_metadata(
    num_heads_q: int,
    head_dim: int,
    batch_size: int,
    max_seqlen_q: int,
    cmp_topk: int,
    cmp_ratio: int,
    has_cmp_kv: bool,
    seqused_kv: Tensor,
) -> Tensor:
    """Opaque to everybody but the attention, which wants that of its own call."""
    sizes = [num_heads_q, head_dim, batch_size, max_seqlen_q, cmp_topk, cmp_ratio, int(has_cmp_kv)]
    words = [*sizes, *seqused_kv.tolist()]
    metadata = torch.zeros(METADATA_WORDS, dtype=torch.int32)
    metadata[: len(words)] = torch.tensor(words, dtype=torch.int32)
    return metadata


@described(
    "custom::npu_sparse_attn_sharedkv",
    Interface("SparseAttnSharedkv", check=_strides),
    return_softmax_lse=False,
    **_READING,
)
def sparse_attention(
    q: Tensor,
    ori_kv: Tensor,
    ori_block_table: Tensor,
    cmp_kv: Tensor | None,
    cmp_block_table: Tensor | None,
    cmp_sparse_indices: Tensor | None,
    cu_seqlens_q: Tensor,
    seqused_kv: Tensor,
    sinks: Tensor,
    metadata: Tensor,
    softmax_scale: float,
    cmp_ratio: int,
) -> Tensor:
    """Layouts TND and PA_ND: q `[T, N, D]`, indices `[T, 1, K]`."""
    assert q.dtype == ori_kv.dtype == torch.bfloat16 and q.shape[1:] == (64, 512)
    assert all(one.dtype == torch.int32 for one in (ori_block_table, cu_seqlens_q, seqused_kv, metadata))
    batch, rows = len(seqused_kv), int(cu_seqlens_q[1])
    topk = 0 if cmp_sparse_indices is None else cmp_sparse_indices.shape[-1]
    expected = attention_metadata(64, 512, batch, rows, topk, cmp_ratio, cmp_kv is not None, seqused_kv)
    assert torch.equal(metadata, expected), "the metadata of another call"
    if cmp_kv is not None:
        assert cmp_ratio in (4, 128) and cmp_kv.dtype == q.dtype and cmp_kv.shape[1] == ori_kv.shape[1]
    output = torch.empty_like(q)
    for b in range(batch):
        first, last = int(cu_seqlens_q[b]), int(cu_seqlens_q[b + 1])
        for t in range(first, last):
            position = int(seqused_kv[b]) - (last - t)
            window = list(range(max(position - WINDOW_LEFT, 0), position + 1))
            seen = [paged_rows(ori_kv, ori_block_table[b], window)]
            if cmp_kv is not None:
                assert cmp_block_table is not None
                chosen = None if cmp_sparse_indices is None else cmp_sparse_indices[t, 0]
                numbers = _visible_entries((position + 1) // cmp_ratio, chosen)
                if numbers:
                    seen.append(paged_rows(cmp_kv, cmp_block_table[b], numbers))
            output[t] = _attend(q[t].float(), torch.cat(seen), sinks, softmax_scale).to(q.dtype)
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


@described(
    "npu::npu_lightning_indexer",
    "LightningIndexer",
    layout_query="BSND",
    layout_key="PA_BSND",
    sparse_mode=0,
)
def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    actual_seq_lengths_query: Tensor,
    actual_seq_lengths_key: Tensor,
    block_table: Tensor,
    sparse_count: int,
) -> Tensor:
    """Layouts BSND and PA_BSND, no mask: query `[B, 1, N, D]`, weights `[B, 1, N]` -> `[B, 1, 1, count]`."""
    lengths = actual_seq_lengths_key
    assert bool((actual_seq_lengths_query == 1).all())
    assert query.dtype == key.dtype == weights.dtype == torch.bfloat16 and query.shape[2:] == (64, 128)
    assert lengths.dtype == block_table.dtype == torch.int32 and bool((lengths > 0).all())
    chosen = torch.full((len(query), 1, 1, sparse_count), -1, dtype=torch.int32)
    for b, length in enumerate(lengths.tolist()):
        rows = paged_rows(key, block_table[b], list(range(length)))
        relevance = torch.relu(query[b, 0].float() @ rows.T)  # [N, S]
        score = (relevance * weights[b, 0].float()[:, None]).sum(0)
        best = torch.topk(score, min(sparse_count, length)).indices
        chosen[b, 0, 0, : len(best)] = best.to(torch.int32)
    return chosen


@described(
    "nextn_npu::compressor",
    Interface(
        "Compressor",
        check=lambda given: given["state_cache_stride_dim0"] == given["state_cache"][0].numel(),
    ),
    rope_head_dim=64,
    rotary_mode=2,
    cache_mode=1,
)
def compressor(
    x: Tensor,
    wkv: Tensor,
    wgate: Tensor,
    state_cache: Tensor,
    ape: Tensor,
    norm_weight: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    state_block_table: Tensor,
    seqused: Tensor,
    start_pos: Tensor,
    cmp_ratio: int,
    coff: int,
    norm_eps: float,
) -> tuple[Tensor, Tensor]:
    """Compressed rows `[B, ceil(S / cmp_ratio), D]` and the state afterwards."""
    assert all(one.dtype == torch.bfloat16 for one in (x, wkv, wgate, norm_weight, rope_sin, rope_cos))
    assert all(one.dtype == torch.int32 for one in (state_block_table, seqused, start_pos))
    assert state_cache.dtype == ape.dtype == torch.float32
    table, ratio, (batch, rows, _) = state_block_table, cmp_ratio, x.shape
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
                pooled = _pool(state, table[b], position // ratio, ratio, coff, width)
                normed = pooled * torch.rsqrt(pooled.square().mean() + norm_eps) * norm_weight.float()
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
