"""`npu_lightning_indexer`, which knows no compression: every row is a request of its own, as long as the
entries it may see. Scores are of bfloat16 operands, so that other entries may be chosen where they are close.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.ascend.fused_ops.blocks import BLOCK_SIZES, as_blocks, block_size, blocks_of_slots
from nextn.compile.targets.ascend.fused_ops.fused_op import Form, first_fault
from nextn.graphs.ops.rows import cast

_HEADS = 64
_WIDTH = 128
_MOST_CHOSEN = 2048
_NO_MASK = 0


def _why_not(
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
        (query.shape[2:] == (_HEADS, _WIDTH), f"{_HEADS} heads of width {_WIDTH}"),
        (topk <= _MOST_CHOSEN, f"at most {_MOST_CHOSEN} chosen entries"),
        (block_size(capacity) is not None, f"entries per slot that {BLOCK_SIZES[-1]} divides"),
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
    block = block_size(capacity)
    assert block is not None
    table = blocks_of_slots(slots, capacity, block, capacity // block)
    total = batch * rows
    chosen, _ = torch.ops.npu.npu_lightning_indexer(
        cast(query, entries.dtype).reshape(total, 1, heads, width),
        as_blocks(entries, block),
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


FORMS = (
    Form(
        "npu_lightning_indexer",
        "indexer_topk",
        _why_not,
        _indexer_topk,
        ("LightningIndexer",),
        reads_blocks=True,
    ),
)
