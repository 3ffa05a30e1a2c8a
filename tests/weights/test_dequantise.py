"""Dequantisation against scalar twins written from the format definitions, and against torch's fp8 dtypes."""

import math
import struct

import pytest
import torch

from nextn.weights.dequantise import dequantise, powers_of_two
from tests.weights.scalar_twins import e2m1_value, e4m3_value, ue8m0_value

DTYPES = [torch.float32, torch.bfloat16]


def codes(*shape: int, seed: int = 0, high: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, high, shape, generator=generator).to(torch.uint8)


def finite_fp8(*shape: int, seed: int = 0) -> torch.Tensor:
    """Every code but the two NaNs."""
    drawn = codes(*shape, seed=seed)
    return torch.where(drawn % 128 == 127, drawn - 1, drawn)


def nearest(values: list[list[float]], dtype: torch.dtype) -> torch.Tensor:
    """Doubles rounded once to fp32 and, for bfloat16, from there."""
    return torch.tensor(values, dtype=torch.float64).float().to(dtype)


def test_every_e4m3_code():
    """The twin decodes sign, exponent and mantissa by hand; torch has the format as a dtype."""
    every = torch.arange(256, dtype=torch.uint8)
    out = torch.empty(1, 256)
    dequantise("fp8_block", every[None], torch.ones(1, 2), out)
    library = every.view(torch.float8_e4m3fn).float()
    for code in range(256):
        found, twin = out[0, code].item(), e4m3_value(code)
        assert struct.pack("<f", found) == struct.pack("<f", library[code]) or math.isnan(twin)
        assert found == twin or (math.isnan(found) and math.isnan(twin))
        assert math.copysign(1, found) == math.copysign(1, twin) or math.isnan(twin)


def test_every_ue8m0_code():
    found = powers_of_two(torch.arange(256, dtype=torch.uint8))
    library = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu).float()
    for code in range(255):
        assert found[code].item() == ue8m0_value(code) == library[code].item()
    assert math.isnan(found[255]) and math.isnan(ue8m0_value(255))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_fp4_byte_with_every_scale(dtype):
    """Low nibble first: the element of even column; all products are exact."""
    every = torch.arange(256, dtype=torch.uint8)
    stored = every.repeat(255, 1)  # [255, 256]
    scales = powers_of_two(torch.arange(255, dtype=torch.uint8))[:, None].repeat(1, 16)
    out = torch.empty(255, 512, dtype=dtype)
    dequantise("mxfp4", stored, scales, out)
    for row in (0, 1, 126, 127, 128, 200, 251):
        scale = ue8m0_value(row)
        expected = [e2m1_value(byte >> half & 15) * scale for byte in range(256) for half in (0, 4)]
        assert torch.equal(out[row], nearest([expected], dtype)[0]), row


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (127, 129), (128, 128), (129, 127), (140, 257)], ids=str)
def test_fp8_blocks_on_ragged_matrices(shape, dtype):
    """One scale for every 128 x 128 block; the last block of a row or column may be smaller."""
    rows, columns = shape
    stored = finite_fp8(rows, columns)
    exponents = codes(-(-rows // 128), -(-columns // 128), seed=1, high=40) + 107
    out = torch.empty(shape, dtype=dtype)
    dequantise("fp8_block", stored, powers_of_two(exponents), out)
    expected = [
        [
            e4m3_value(int(stored[i, j])) * ue8m0_value(int(exponents[i // 128, j // 128]))
            for j in range(columns)
        ]
        for i in range(rows)
    ]
    assert torch.equal(out, nearest(expected, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (5, 62), (7, 96), (64, 4096)], ids=str)
def test_mxfp4_matrices(shape, dtype):
    rows, columns = shape
    stored = codes(rows, columns // 2, seed=2)
    exponents = codes(rows, -(-columns // 32), seed=3, high=40) + 107
    out = torch.empty(shape, dtype=dtype)
    dequantise("mxfp4", stored, powers_of_two(exponents), out)
    for i in range(min(rows, 8)):
        expected = [
            e2m1_value(int(stored[i, j // 2]) >> 4 * (j % 2) & 15) * ue8m0_value(int(exponents[i, j // 32]))
            for j in range(columns)
        ]
        assert torch.equal(out[i], nearest([expected], dtype)[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_int8_rows(dtype):
    stored = codes(6, 200, seed=4)
    scales = torch.rand(6, 1, generator=torch.Generator().manual_seed(5)) + 1e-3
    out = torch.empty(6, 200, dtype=dtype)
    dequantise("int8_row", stored, scales, out)
    expected = [
        [((int(code) + 128) % 256 - 128) * scale.item() for code in row]
        for row, scale in zip(stored, scales, strict=True)
    ]
    assert torch.equal(out, nearest(expected, dtype))


@pytest.mark.parametrize("encoding", ["fp8_block", "mxfp4", "int8_row"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slices_of_rows_are_the_whole(encoding, dtype):
    """Reading a matrix piece by piece gives the same bits, wherever the pieces start."""
    rows, columns = 333, 190
    stored = finite_fp8(rows, columns if encoding != "mxfp4" else columns // 2, seed=6)
    shapes = {"fp8_block": (3, 2), "mxfp4": (rows, 6), "int8_row": (rows, 1)}
    scales = powers_of_two(codes(*shapes[encoding], seed=7, high=20) + 117)
    whole = torch.empty(rows, columns, dtype=dtype)
    dequantise(encoding, stored, scales, whole)
    pieces = torch.empty_like(whole)
    for begin, end in ((0, 1), (1, 129), (129, 130), (130, 333)):
        dequantise(encoding, stored[begin:end], scales, pieces[begin:end], begin)
    assert torch.equal(pieces, whole)


def test_negative_zero_and_subnormal_products():
    """The smallest products are fp32 subnormals; nothing is flushed."""
    out = torch.empty(1, 4)
    stored = torch.tensor([[0x80, 0x01, 0x81, 0x00]], dtype=torch.uint8)
    dequantise("fp8_block", stored, torch.tensor([[2.0**-127]]), out)
    assert out.tolist() == [[-0.0, 2.0**-136, -(2.0**-136), 0.0]]
    assert math.copysign(1, out[0, 0]) == -1
