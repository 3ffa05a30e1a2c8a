"""Exact dequantisation of a release's matrices by tables of codes, then one multiplication.

Every product is rounded at most once, in the output dtype: fp8 and fp4 values have at most four significant
bits and their scales are powers of two, so that those products are exact; int8 values times an fp32 scale
round to fp32 first, and to bfloat16 from there. Source: docs/mathematics.md, "Dequantisation".
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch import Tensor

Encoding = Literal["plain", "fp8_block", "mxfp4", "int8_row"]
"""How the values of a tensor are stored: as numbers, or as codes with scales."""

FP8_BLOCK = 128
"""Rows and columns that share one scale of an fp8 matrix; blocks at the edges are cut short."""

MXFP4_GROUP = 32
"""Neighbouring columns that share one scale of an fp4 matrix; a byte holds two columns."""

SCALE_NAN = 255
"""The only ue8m0 code that is not a power of two."""

PIECE_BYTES = 512 * 1024
"""Codes that are best dequantised at a time.

On one core of an EPYC shared with other work, fp4 to fp32 runs at 1.1 GB/s of codes with this, at 0.9 GB/s
with 2 MB, whose values no longer fit the caches, and at 1.0 GB/s with 128 kB.
"""

_FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def powers_of_two(codes: Tensor) -> Tensor:
    """ue8m0 codes, uint8, to fp32 of the same shape: 2^(code - 127), NaN for 255."""
    return _powers()[codes.int()]


def dequantise(encoding: Encoding, codes: Tensor, scales: Tensor, out: Tensor, first_row: int = 0) -> None:
    """Fill `out` with the values of some rows of a quantised matrix.

    Args:
        encoding: `fp8_block`, `mxfp4` or `int8_row`.
        codes: uint8 `[rows, bytes of one row]`.
        scales: fp32, of the whole matrix: `[row blocks, column blocks]`, `[rows, groups]` or `[rows, 1]`.
        out: `[rows, columns]`, float32 or bfloat16.
        first_row: the row of the matrix that `codes` starts with.
    """
    rows = torch.arange(first_row, first_row + codes.shape[0])
    factors = scales[rows // FP8_BLOCK if encoding == "fp8_block" else rows]
    if encoding != "int8_row":
        # Powers of two lose nothing in bfloat16.
        factors = factors.to(out.dtype)
    if encoding == "fp8_block":
        _scaled_codes(codes, _fp8_table(out.dtype), factors, FP8_BLOCK, out)
    elif encoding == "mxfp4":
        _scaled_codes(codes, _fp4_table(out.dtype), factors, MXFP4_GROUP, out)
    else:
        assert encoding == "int8_row"
        out.copy_(codes.view(torch.int8).float().mul_(factors))


def _scaled_codes(codes: Tensor, table: Tensor, factors: Tensor, width: int, out: Tensor) -> None:
    """Values of `codes [R, bytes]` by `table`, each `width` columns times one of `factors [R, groups]`."""
    _look_up(codes.reshape(-1), table, out.view(-1))
    whole = out.shape[1] // width
    split = whole * width
    if whole:
        out[:, :split].view(-1, whole, width).mul_(factors[:, :whole, None])  # [R, whole, width]
    if split < out.shape[1]:
        out[:, split:].mul_(factors[:, whole:])


def _look_up(codes: Tensor, table: Tensor, out: Tensor) -> None:
    """Flat values of flat `codes`; a table of 65536 takes two codes at a time."""
    pairs = table.numel() == 65536
    if pairs and (codes.numel() % 2 or codes.storage_offset() % 2):
        codes = torch.cat([codes, codes.new_zeros(codes.numel() % 2)])
    index = codes.view(torch.uint16).int() if pairs else codes.int()
    if out.nbytes % table.itemsize or out.storage_offset() * out.itemsize % table.itemsize:
        # Odd sizes do not divide into entries.
        out.copy_(table.index_select(0, index).view(out.dtype)[: out.numel()])
    else:
        torch.index_select(table, 0, index, out=out.view(table.dtype))


@cache
def _powers() -> Tensor:
    powers = torch.ldexp(torch.ones(256, dtype=torch.float64), torch.arange(256) - 127).float()
    powers[SCALE_NAN] = torch.nan
    return powers


@cache
def _fp8_table(dtype: torch.dtype) -> Tensor:
    """Pairs of e4m3 values by pairs of codes."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(dtype)
    return _by_pairs(values[:, None])


@cache
def _fp4_table(dtype: torch.dtype) -> Tensor:
    """The two e2m1 values of a byte, low nibble first; in bfloat16 those of two bytes.

    Four fp32 values an entry would be a table of 1 MB, which no longer fits beside the data: 0.7 GB/s.
    """
    magnitudes = torch.tensor(_FP4_MAGNITUDES)
    values = torch.cat([magnitudes, -magnitudes]).to(dtype)  # [16]
    byte = torch.arange(256)
    two = torch.stack([values[byte % 16], values[byte // 16]], dim=1)  # [256, 2]
    return _entries(two) if dtype == torch.float32 else _by_pairs(two)


def _by_pairs(values: Tensor) -> Tensor:
    """From the values of one byte, `[256, n]`, to a table by little-endian pairs of bytes."""
    pair = torch.arange(65536)
    return _entries(torch.cat([values[pair % 256], values[pair // 256]], dim=1))


def _entries(values: Tensor) -> Tensor:
    """Rows of values as one integer each, which a table can be indexed for at once."""
    wide = {4: torch.int32, 8: torch.int64}[values.shape[1] * values.dtype.itemsize]
    return values.contiguous().view(wide).view(-1)
