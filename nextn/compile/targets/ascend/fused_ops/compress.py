"""`Compressor`: projects rows, keeps them in a state by position, and pools the blocks that they complete.

The operator reads its state by position in blocks that a table names, block 0 being none. It is given the
ring rows of the block in progress (and, for C4, of the one before), with positions counted from there, and
returns them with the window's rows, which go back to the ring. Matrices and the norm are rounded to bfloat16
at every launch, and so are entries before they are written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.compile.targets.fused_op import FusedOp, first_fault
from nextn.graphs.ops.rows import cast, fp32

_SHAPES = ((512, 4, 2), (128, 4, 2), (512, 128, 1))
"""Width of an entry, ratio, and blocks that overlap in an entry."""
_TURNING = 64
_ALIGNMENT, _NARROWEST, _WIDEST = 512, 1024, 10240
_STATE_BLOCK = 16
_INTERLEAVED = 2
_CONSECUTIVE = 1


def _fault(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: Tensor,
    earlier: Tensor,
    start: Tensor,
    count: Tensor,
    cos: Tensor,
    sin: Tensor,
    ratio: int,
    eps: float,
) -> str | None:
    width, hidden = norm.shape[0], x.shape[-1]
    return first_fault(
        (x.dtype == torch.bfloat16, "rows in bfloat16"),
        ((width, ratio, bias.shape[1] // width) in _SHAPES, "entries of width 512, or 128 in C4 layers"),
        (2 * cos.shape[-1] == _TURNING, f"{_TURNING} channels that turn"),
        (
            hidden % _ALIGNMENT == 0 and _NARROWEST <= hidden <= _WIDEST,
            f"rows of {_NARROWEST} to {_WIDEST} channels that {_ALIGNMENT} divides",
        ),
    )


def _compress(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: Tensor,
    earlier: Tensor,
    start: Tensor,
    count: Tensor,
    cos: Tensor,
    sin: Tensor,
    ratio: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    batch, rows, _ = x.shape
    width = norm.shape[0]
    overlap = bias.shape[1] // width
    base = (
        torch.clamp(start // ratio - (overlap - 1), min=0) * ratio
    )  # [B], position of the state's first row
    state = _state(earlier, start - base, overlap * ratio + rows)
    matrices = cast(weight, x.dtype).chunk(2)
    blocks = state.shape[0] // batch
    table = 1 + torch.arange(batch * blocks).view(batch, blocks)
    entries, state = torch.ops.nextn_npu.compressor(
        x,
        *matrices,
        torch.cat([torch.zeros_like(state[:1]), state]),
        bias,
        cast(norm, x.dtype),
        _of_pairs(sin, x.dtype),
        _of_pairs(cos, x.dtype),
        table.to(torch.int32),
        count.to(torch.int32),
        (start - base).to(torch.int32),
        rope_head_dim=_TURNING,
        cmp_ratio=ratio,
        coff=overlap,
        norm_eps=eps,
        rotary_mode=_INTERLEAVED,
        cache_mode=_CONSECUTIVE,
    )
    channels = state.shape[-1]
    place = (start - base)[:, None] + torch.arange(rows)  # [B, V]
    row = (1 + torch.arange(batch)[:, None] * blocks) * _STATE_BLOCK + place
    return state.view(-1, channels)[row], fp32(entries)


def _state(earlier: Tensor, known: Tensor, length: int) -> Tensor:
    """Blocks `[B * blocks, block, 2cD]` of at least `length` rows, the first `known [B]` from the ring.

    `earlier [B, span - 1, 2cD]` ends where the known rows end. The operator writes the others before reading.
    """
    batch, before, channels = earlier.shape
    blocks = -(-length // _STATE_BLOCK)
    place = torch.arange(blocks * _STATE_BLOCK)
    row = (
        torch.clamp(place + (before - known)[:, None], 0, before - 1) + torch.arange(batch)[:, None] * before
    )
    return earlier.reshape(-1, channels)[row].view(-1, _STATE_BLOCK, channels)


def _of_pairs(values: Tensor, dtype: torch.dtype) -> Tensor:
    """`[B, J, R / 2]` -> `[B, J, R]`, each value for both channels of a pair."""
    return cast(torch.stack([values, values], dim=-1).flatten(-2), dtype)


FUSED_OPS = (FusedOp("npu_compressor", "compress", _fault, _compress, ("Compressor",)),)
