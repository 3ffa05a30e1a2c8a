"""`SparseAttnSharedkv`, once for every 64 heads, over a window of 128 positions and compressed entries.

The operator reads keys by absolute position, in blocks that a table names. Our ring has a window's keys in
another order, and without the window's own rows: they are laid out in blocks here, and the table leads from
positions to these blocks wherever the window can be. Entries are consecutive in our state, and read as they
lie; of entries that do not exist yet the operator reads none, as a row at position p sees (p + 1) // ratio.
It takes that for padding too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.ascend.fused_ops.blocks import BLOCK_SIZES, as_blocks, block_size, blocks_of_slots
from nextn.compile.targets.ascend.fused_ops.fused_op import Form, first_fault
from nextn.graphs.ops.rows import cast, fp32
from nextn.graphs.ops.window_attention import known_positions

_HEADS = 64
_WIDTH = 512
_REACH = 127
"""Positions before its own that a row sees."""
_RATIOS = (0, 4, 128)
_CHOSEN = 512
_CHOOSING_RATIO = 4
_FIXED = {
    "ori_mask_mode": 4,  # a band
    "cmp_mask_mode": 3,  # causal, from the end
    "ori_win_left": _REACH,
    "ori_win_right": 0,
    "layout_q": "TND",
    "layout_kv": "PA_ND",
}


def _why_not(
    query: Tensor,
    keys: Tensor,
    start: Tensor,
    count: Tensor,
    sink: Tensor,
    entries: Tensor | None,
    slots: Tensor | None,
    chosen: Tensor | None,
    ratio: int,
    capacity: int,
) -> str | None:
    return first_fault(
        (keys.dtype == torch.bfloat16, "keys in bfloat16"),
        (
            query.shape[2] % _HEADS == 0 and query.shape[3] == _WIDTH,
            f"heads of width {_WIDTH} whose number {_HEADS} divides",
        ),
        (keys.shape[1] - query.shape[1] == _REACH, f"a window of {_REACH + 1} positions"),
        (ratio in _RATIOS, "compression ratio 4 or 128"),
        (block_size(capacity) is not None, f"entries per slot that {BLOCK_SIZES[-1]} divides"),
        (ratio != _CHOOSING_RATIO or _num_chosen(chosen, capacity) == _CHOSEN, f"{_CHOSEN} chosen entries"),
    )


def _num_chosen(chosen: Tensor | None, capacity: int) -> int:
    """Entries a row of a layer with an indexer may name; all fit where it does not choose."""
    if chosen is not None:
        return chosen.shape[-1]
    return _CHOSEN if capacity <= _CHOSEN else capacity


def _window_attention(
    query: Tensor,
    keys: Tensor,
    start: Tensor,
    count: Tensor,
    sink: Tensor,
    entries: Tensor | None,
    slots: Tensor | None,
    chosen: Tensor | None,
    ratio: int,
    capacity: int,
) -> Tensor:
    batch, rows, heads, width = query.shape
    block = block_size(capacity)
    assert block is not None
    cache, first = _blocks_of_window(keys, start, block)
    if entries is None:
        # Nothing else depends on positions: they are counted from the first block.
        base, columns = first, cache.shape[0] // batch
    else:
        base, columns = torch.zeros_like(first), -(-(capacity * ratio + rows) // block)
    shared = _FIXED | {
        "cu_seqlens_q": (torch.arange(batch + 1) * rows).to(torch.int32),
        "seqused_kv": (start + rows - base * block).to(torch.int32),
        "cmp_ratio": max(ratio, 1),
    }
    metadata = torch.ops.custom.npu_sparse_attn_sharedkv_metadata(
        _HEADS,
        1,
        width,
        batch_size=batch,
        max_seqlen_q=rows,
        max_seqlen_kv=columns * block,
        cmp_topk=_CHOSEN if ratio == _CHOOSING_RATIO else 0,
        has_ori_kv=True,
        has_cmp_kv=entries is not None,
        **shared,
    )
    shared |= {"ori_kv": cache, "ori_block_table": _table_of_window(first - base, columns, cache, batch)}
    if entries is not None and slots is not None:
        shared["cmp_kv"] = as_blocks(entries, block)
        of_entries = -(-(columns * block // ratio) // block)
        shared["cmp_block_table"] = blocks_of_slots(slots, capacity, block, of_entries)
    if ratio == _CHOOSING_RATIO:
        shared["cmp_sparse_indices"] = _seen_entries(start, rows, count, chosen, ratio)
    flat = cast(query, torch.bfloat16).reshape(batch * rows, heads, width)
    outputs = [
        torch.ops.custom.npu_sparse_attn_sharedkv(
            part, sinks=sinks, metadata=metadata, softmax_scale=width**-0.5, **shared
        )[0]
        for part, sinks in zip(flat.split(_HEADS, dim=1), sink.split(_HEADS), strict=True)
    ]
    # Padding saw entries that do not exist, whatever they hold, and the next layer multiplies its rows by 0.
    real = torch.arange(rows) < count[:, None]  # [B, V]
    return torch.where(real[:, :, None, None], fp32(torch.cat(outputs, dim=1)).view(query.shape), 0.0)


def _blocks_of_window(keys: Tensor, start: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Keys `[B * blocks, block, 1, D]` of consecutive positions, and the first block's number int64 `[B]`.

    Enough blocks for the window wherever it begins inside one; rows outside it repeat its ends.
    """
    batch, length, width = keys.shape
    blocks = -(-(length + block - 1) // block)
    oldest = start - _REACH
    first = torch.clamp(oldest, min=0) // block
    key = (first * block - oldest)[:, None] + torch.arange(blocks * block)
    row = torch.arange(batch)[:, None] * length + torch.clamp(key, 0, length - 1)
    return as_blocks(keys.reshape(-1, width)[row].reshape(-1, width), block), first


def _table_of_window(first: Tensor, columns: int, cache: Tensor, batch: int) -> Tensor:
    """Block table int32 `[B, columns]` whose column `first [B]` leads to the window's first block.

    Columns outside the window lead to its ends, and are not read.
    """
    blocks = cache.shape[0] // batch
    place = torch.clamp(torch.arange(columns) - first[:, None], 0, blocks - 1)
    return (torch.arange(batch)[:, None] * blocks + place).to(torch.int32)


def _seen_entries(start: Tensor, rows: int, count: Tensor, chosen: Tensor | None, ratio: int) -> Tensor:
    """int32 `[T, 1, K]`: entries a row attends to, then -1. Chosen ones have those they may not see last."""
    number = torch.arange(_CHOSEN).expand(start.shape[0], rows, -1) if chosen is None else chosen
    complete = known_positions(start, count, rows) // ratio  # [B, V]
    seen = torch.where(number < complete[:, :, None], number, -1)
    return seen.to(torch.int32).reshape(-1, 1, _CHOSEN)


FORMS = (
    Form(
        "npu_sparse_attn_sharedkv",
        "window_attention",
        _why_not,
        _window_attention,
        ("SparseAttnSharedkv",),
        reads_blocks=True,
    ),
)
