"""Paged operators: attention over a window and compressed entries, and the indexer's choice of entries.

Both read caches in blocks of consecutive rows, which a table names.

`SparseAttnSharedkv`, once for every 64 heads, reads keys by absolute position. Our ring has a window's keys
in another order, and without the window's own rows: they are laid out in blocks here, and the table leads
from positions to these blocks wherever the window can be. Entries are consecutive in our state, and read as
they lie; of entries that do not exist yet the operator reads none, as a row at position p sees (p + 1) //
ratio. It takes that for padding too.

`npu_lightning_indexer` knows no compression: every row is a request of its own, as long as the entries it may
see. Scores are of bfloat16 operands, so that other entries may be chosen where they are close.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.fused_op import FusedOp, first_fault
from nextn.graphs.ops.rows import cast, fp32
from nextn.graphs.ops.window_attention import known_positions

_BLOCK_SIZES = (128, 64, 32, 16)
"""Rows of a block: multiples of 16. Larger ones have shorter tables; no engine uses more than 128."""

ENTRY_ROWS_MULTIPLES = (_BLOCK_SIZES[-1], _BLOCK_SIZES[0])
"""`SessionShape.entry_rows_multiples` by which entries fill whole blocks."""


def _block_size(capacity: int) -> int | None:
    """Of a buffer whose slots have `capacity` consecutive rows, or, at 0, of none; None if no block fits."""
    return next((size for size in _BLOCK_SIZES if capacity % size == 0), None)


def _as_blocks(rows: Tensor, block: int) -> Tensor:
    """`[rows, D]` -> `[blocks, block, 1, D]`, without a copy."""
    return rows.view(-1, block, 1, rows.shape[-1])


def _blocks_of_slots(slots: Tensor, capacity: int, block: int, columns: int) -> Tensor:
    """Block table int32 `[B, columns]` of buffers by slot; columns past a slot's last block repeat it."""
    of_slot = capacity // block
    column = torch.clamp(torch.arange(columns), max=of_slot - 1)
    return (slots[:, None] * of_slot + column).to(torch.int32)


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


def _attention_fault(
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
        (_block_size(capacity) is not None, f"entries per slot that {_BLOCK_SIZES[-1]} divides"),
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
    block = _block_size(capacity)
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
        shared["cmp_kv"] = _as_blocks(entries, block)
        of_entries = -(-(columns * block // ratio) // block)
        shared["cmp_block_table"] = _blocks_of_slots(slots, capacity, block, of_entries)
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
    return _as_blocks(keys.reshape(-1, width)[row].reshape(-1, width), block), first


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


_INDEXER_HEADS = 64
_INDEXER_WIDTH = 128
_MOST_CHOSEN = 2048
_NO_MASK = 0


def _indexer_fault(
    query: Tensor,
    weight: Tensor,
    entries: Tensor,
    slots: Tensor,
    complete: Tensor,
    topk: int,
    capacity: int,
) -> str | None:
    return first_fault(
        (entries.dtype == torch.bfloat16, "entries in bfloat16"),
        (
            query.shape[2:] == (_INDEXER_HEADS, _INDEXER_WIDTH),
            f"{_INDEXER_HEADS} heads of width {_INDEXER_WIDTH}",
        ),
        (topk <= _MOST_CHOSEN, f"at most {_MOST_CHOSEN} chosen entries"),
        (_block_size(capacity) is not None, f"entries per slot that {_BLOCK_SIZES[-1]} divides"),
    )


def _indexer_topk(
    query: Tensor,
    weight: Tensor,
    entries: Tensor,
    slots: Tensor,
    complete: Tensor,
    topk: int,
    capacity: int,
) -> Tensor:
    batch, rows, heads, width = query.shape
    block = _block_size(capacity)
    assert block is not None
    table = _blocks_of_slots(slots, capacity, block, capacity // block)
    total = batch * rows
    chosen, _ = torch.ops.npu.npu_lightning_indexer(
        cast(query, entries.dtype).reshape(total, 1, heads, width),
        _as_blocks(entries, block),
        cast(weight, entries.dtype).reshape(total, 1, heads),
        actual_seq_lengths_query=torch.ones(total, dtype=torch.int32),
        # No length is 0: the one entry of a row that may see none is hidden from it afterwards.
        actual_seq_lengths_key=torch.clamp(complete, min=1).reshape(total).to(torch.int32),
        block_table=table[:, None].expand(batch, rows, -1).reshape(total, -1),
        layout_query="BSND",
        layout_key="PA_BSND",
        sparse_count=topk,
        sparse_mode=_NO_MASK,
    )
    number = chosen.to(torch.int64).view(batch, rows, topk)
    # -1 fills up where a row sees fewer; the last entry is hidden from such a row.
    return torch.where(number < 0, capacity - 1, number)


FUSED_OPS = (
    FusedOp(
        "npu_sparse_attn_sharedkv",
        "window_attention",
        _attention_fault,
        _window_attention,
        ("SparseAttnSharedkv",),
        reads_blocks=True,
    ),
    FusedOp(
        "npu_lightning_indexer",
        "indexer_topk",
        _indexer_fault,
        _indexer_topk,
        ("LightningIndexer",),
        reads_blocks=True,
    ),
)
