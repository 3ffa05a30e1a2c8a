"""`SparseAttnSharedkv`, once for every 64 heads, over a window of 128 positions and compressed entries.

The operator reads keys by absolute position, in blocks that a table names. Our ring has a window's keys in
another order, and without the window's own rows: they are laid out in blocks here, and the table leads from
positions to these blocks wherever the window can be. Entries are consecutive in our state, and read as they
lie; of entries that do not exist yet the operator reads none, as a row at position p sees (p + 1) // ratio.
It takes that for padding too, whose results nobody reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.npu.forms.blocks import BLOCK_SIZES, as_blocks, block_size, blocks_of_slots
from nextn.compile.npu.forms.form import Form, first_fault
from nextn.graphs.ops.cast import cast, fp32

_HEADS = 64
_WIDTH = 512
_REACH = 127
"""Positions before its own that a row sees."""
_RATIOS = (0, 4, 128)
_CHOSEN = 512
_CHOOSING_RATIO = 4
_BAND_MASK, _CAUSAL_MASK = 4, 3


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
    block = block_size(capacity) or BLOCK_SIZES[0]
    cache, first = _blocks_of_window(keys, start, block)
    of_window = cache.shape[0] // batch
    if entries is None:
        # Nothing else depends on positions: they are counted from the first block.
        base, columns = first, of_window
    else:
        base, columns = torch.zeros_like(first), -(-(capacity * ratio + rows) // block)
    place = torch.clamp(torch.arange(columns) + (base - first)[:, None], 0, of_window - 1)
    table = torch.arange(batch)[:, None] * of_window + place
    shared = {
        "cu_seqlens_q": (torch.arange(batch + 1) * rows).to(torch.int32),
        "seqused_kv": (start + rows - base * block).to(torch.int32),
        "cmp_ratio": max(ratio, 1),
        "ori_mask_mode": _BAND_MASK,
        "cmp_mask_mode": _CAUSAL_MASK,
        "ori_win_left": _REACH,
        "ori_win_right": 0,
        "layout_q": "TND",
        "layout_kv": "PA_ND",
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
    compressed = {}
    if entries is not None and slots is not None:
        of_rows = -(-(columns * block // ratio) // block)
        compressed["cmp_kv"] = as_blocks(entries, block)
        compressed["cmp_block_table"] = blocks_of_slots(slots, capacity, block, of_rows)
        if ratio == _CHOOSING_RATIO:
            compressed["cmp_sparse_indices"] = _seen_entries(start, rows, count, chosen, ratio)
    flat = cast(query, torch.bfloat16).reshape(batch * rows, heads, width)
    outputs = [
        torch.ops.custom.npu_sparse_attn_sharedkv(
            part,
            ori_kv=cache,
            ori_block_table=table.to(torch.int32),
            sinks=sinks,
            metadata=metadata,
            softmax_scale=width**-0.5,
            **compressed,
            **shared,
        )[0]
        for part, sinks in zip(flat.split(_HEADS, dim=1), sink.split(_HEADS), strict=True)
    ]
    return fp32(torch.cat(outputs, dim=1)).view(query.shape)


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


def _seen_entries(start: Tensor, rows: int, count: Tensor, chosen: Tensor | None, ratio: int) -> Tensor:
    """int32 `[T, 1, K]`: entries a row attends to, then -1. Chosen ones have those they may not see last."""
    number = torch.arange(_CHOSEN).expand(start.shape[0], rows, -1) if chosen is None else chosen
    known = torch.minimum(start[:, None] + torch.arange(rows) + 1, (start + count)[:, None])  # [B, V]
    seen = torch.where(number < (known // ratio)[:, :, None], number, -1)
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
