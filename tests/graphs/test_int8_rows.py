"""Int8 products against Python's integers, and weights that are int8 rows in each kind of product."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from nextn.graphs.ops.experts import expert_mlp
from nextn.graphs.ops.int8_rows import EXACT_COLUMNS, exact_product, int8_linear, quantise_rows
from nextn.graphs.ops.linear import Weight, grouped_linear, linear


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def int8_weight(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Weight:
    matrix = Weight(shape, dtype)
    matrix.store_as("int8_row")
    assert matrix.scales is not None
    matrix.weight.copy_(torch.randint(-128, 128, shape, generator=generator))
    matrix.scales.copy_(torch.rand(matrix.scales.shape, generator=generator) + 0.1)
    return matrix


def code(value: float, largest: float) -> int:
    """One value of a row, by exact arithmetic on what float32 makes of the quotient."""
    step = torch.tensor(largest) / 127
    quotient = Fraction(float(torch.tensor(value) / step))
    return round(quotient)  # Python rounds half to even


def test_codes_of_a_row() -> None:
    x = torch.randn(5, 33, generator=draw(0))
    codes, step = quantise_rows(x)
    for row, found in zip(x, codes, strict=True):
        largest = float(row.abs().max())
        assert found.tolist() == [code(float(value), largest) for value in row]
    assert torch.equal(step[:, 0], x.abs().max(1).values / 127)
    assert float(codes.abs().max()) == 127


def test_ties_round_to_even_and_zeros_have_no_step() -> None:
    codes, step = quantise_rows(torch.tensor([[127.0, 0.5, 1.5, -2.5, -126.5], [0.0] * 5]))
    assert codes.tolist() == [[127, 0, 2, -2, -126], [0] * 5]
    assert step.tolist() == [[1.0], [0.0]]


def test_codes_stay_codes_among_denormal_numbers() -> None:
    """There a step is rounded so much that quotients pass 127."""
    smallest = 2.0**-149
    codes, _ = quantise_rows(torch.tensor([[190 * smallest, smallest]]))
    assert float(codes.abs().max()) <= 127


@pytest.mark.parametrize("columns", [1, EXACT_COLUMNS, EXACT_COLUMNS + 1, 4 * EXACT_COLUMNS + 7])
def test_products_are_those_of_integers(columns: int) -> None:
    generator = draw(columns)
    codes = torch.randint(-127, 128, (3, columns), generator=generator)
    weight = torch.randint(-128, 128, (4, columns), generator=generator)
    # The largest sum there is, and one float32 has no number for.
    codes[0], weight[0] = 127, -128
    found = exact_product(codes.float(), weight.to(torch.int8))
    assert found.dtype == torch.int32
    assert torch.equal(found.long(), codes @ weight.t())


def expected_linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """float64, with codes by the rule above."""
    rows = []
    for row in x.float():
        largest = float(row.abs().max())
        codes = torch.tensor([code(float(value), largest) for value in row], dtype=torch.float64)
        rows.append((weight.double() @ codes) * scales[:, 0].double() * largest / 127)
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear(dtype: torch.dtype) -> None:
    generator = draw(3)
    matrix = int8_weight(generator, 6, 40, dtype=dtype)
    assert matrix.scales is not None
    x = torch.randn(4, 40, generator=generator)
    found = linear(x, matrix)
    assert found.dtype == dtype
    expected = expected_linear(x.to(dtype), matrix.weight, matrix.scales)
    step = 1e-6 if dtype == torch.float32 else 2.0**-8
    assert float((found.double() - expected).abs().max()) <= step * float(expected.abs().max())
    stacked = linear(x.view(2, 2, 40), matrix)
    assert torch.equal(stacked.view(4, -1), found)


def test_grouped_linear_quantises_each_group() -> None:
    generator = draw(4)
    matrix = int8_weight(generator, 6, 8)  # 3 groups of [2, 8]
    assert matrix.scales is not None
    x = torch.randn(5, 3, 8, generator=generator)
    found = grouped_linear(x, matrix, 3)
    for group in range(3):
        rows = slice(2 * group, 2 * group + 2)
        expected = int8_linear(x[:, group], matrix.weight[rows], matrix.scales[rows], torch.float32)
        assert torch.equal(found[:, rows], expected)


@pytest.mark.parametrize("coded", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("rows", [1, 6])
def test_experts(rows: int, coded: tuple[bool, bool]) -> None:
    """Few pairs and many, against one expert after the other."""
    generator = draw(rows)
    experts, chosen, hidden, inner, limit = 4, 2, 12, 5, 0.9
    shapes = ((experts, 2 * inner, hidden), (experts, hidden, inner))
    matrices = []
    for shape, is_coded in zip(shapes, coded, strict=True):
        matrix = int8_weight(generator, *shape)
        if not is_coded:
            matrix = Weight(shape, torch.float32)
            matrix.weight.copy_(torch.randn(shape, generator=generator))
        matrices.append(matrix)
    x = torch.randn(rows, hidden, generator=generator)
    index = torch.rand(rows, experts, generator=generator).argsort(1)[:, :chosen]
    route = torch.rand(rows, chosen, generator=generator)
    found = expert_mlp(x, index, route, *matrices, limit)

    def product(row: Tensor, matrix: Weight, expert: int) -> Tensor:
        if matrix.scales is None:
            return row @ matrix.weight[expert].t()
        return int8_linear(row, matrix.weight[expert], matrix.scales[expert], torch.float32)

    for row in range(rows):
        total = torch.zeros(hidden)
        for expert, weight in zip(index[row].tolist(), route[row], strict=True):
            gate, up = product(x[row : row + 1], matrices[0], expert).chunk(2, dim=-1)
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            total += weight * product(gate * torch.sigmoid(gate) * up, matrices[1], expert)[0]
        torch.testing.assert_close(found[row], total, rtol=1e-5, atol=1e-5)
