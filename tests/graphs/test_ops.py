"""Small operations against double precision and loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nextn.graphs.control import read_field, with_fields
from nextn.graphs.ops import experts
from nextn.graphs.ops.linear import Weight, grouped_linear, linear
from nextn.graphs.ops.operator import OPERATORS
from nextn.graphs.ops.routing import sqrt_softplus
from nextn.graphs.ops.rows import read_rows, write_rows
from nextn.graphs.ops.topk_entries import COUNTING_LIMIT, topk_entries
from nextn.runtime.contract.blocks import Control


def test_sqrt_softplus_keeps_its_tails():
    """Router scores of rejected experts are far out in the tail, where the plain form is 0."""
    x = torch.cat([torch.linspace(-80, 80, 1601), torch.tensor([0.0, -16.7, -30.0, -87.0, 1e4])])
    found = sqrt_softplus(x).double()
    expected = torch.sqrt(torch.clamp(x.double(), min=0) + torch.log1p(torch.exp(-x.double().abs())))
    torch.testing.assert_close(found, expected, rtol=5e-7, atol=0)


def best_by_sorting(score: Tensor, k: int) -> list[int]:
    """Indices of one row, NaN counted as the worst; Python's sort is stable."""
    values = [-math.inf if math.isnan(value) else value for value in score.tolist()]
    return sorted(sorted(range(len(values)), key=lambda i: -values[i])[:k])


@pytest.mark.parametrize("width", [1, 6, 51, 511, 512, 513, 900])
@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_topk_entries_equal_a_stable_sort(width, levels):
    """Higher score first, then lower index, on both sides of the counting limit and with -inf among them."""
    assert COUNTING_LIMIT == 512
    generator = torch.Generator().manual_seed(width * levels)
    score = torch.randint(0, levels, (2, 3, width), generator=generator).float() - 1.0
    score[0, 0, width // 2 :] = -math.inf
    score[0, 1] = -math.inf
    for k in sorted({1, min(3, width), width}):
        found = topk_entries(score, k)
        assert found.shape == (2, 3, k)
        for row, indices in zip(score.view(-1, width), found.view(-1, k), strict=True):
            assert sorted(indices.tolist()) == best_by_sorting(row, k)


@pytest.mark.parametrize("width", [16, 640])
@pytest.mark.parametrize("seen", [0, 1, 5, 15])
def test_hidden_entries_come_last_in_the_plain_implementation(width, seen):
    score = torch.randn(4, width, generator=torch.Generator().manual_seed(seen))
    score[:, seen:] = -math.inf
    for row in OPERATORS[topk_entries](score, 12):
        assert sorted(row.tolist()[:seen]) == sorted(set(range(seen)) & set(row.tolist()))
        assert min(row.tolist()[seen:], default=seen) >= seen


@pytest.mark.parametrize("width", [6, 600])
def test_topk_entries_are_valid_indices_whatever_the_scores(width):
    """A row of NaN, as padding may hold, must not select an expert that does not exist."""
    score = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    score[0], score[1, 2] = math.nan, math.nan
    found = topk_entries(score, 3)
    for row, indices in zip(score, found, strict=True):
        assert sorted(indices.tolist()) == best_by_sorting(row, 3)


def naive_experts(
    x: Tensor, index: Tensor, route: Tensor, first: Tensor, second: Tensor, limit: float
) -> Tensor:
    """`[T, H]` float64, one row and one expert at a time."""
    rows = []
    for row in range(x.shape[0]):
        total = torch.zeros(second.shape[1], dtype=torch.float64)
        for expert, weight in zip(index[row].tolist(), route[row].double(), strict=True):
            gate, up = (first[expert].double() @ x[row].double()).chunk(2)
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            total += weight * (second[expert].double() @ (gate * torch.sigmoid(gate) * up))
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("rows", [1, 2, 3, 20])
def test_expert_forms_agree_with_the_loop(rows):
    """Gathered and dense are one function; `expert_mlp` only chooses. The gate is clamped from above only."""
    generator = torch.Generator().manual_seed(rows)
    count, chosen, hidden, inner, limit = 7, 3, 8, 5, 0.7
    gate_up, down = (
        Weight((count, 2 * inner, hidden), torch.float32),
        Weight((count, hidden, inner), torch.float32),
    )
    for matrix in (gate_up, down):
        matrix.weight.copy_(torch.randn(matrix.weight.shape, generator=generator))
    x = torch.randn(rows, hidden, generator=generator)
    index = torch.rand(rows, count, generator=generator).argsort(1)[:, :chosen]
    route = torch.rand(rows, chosen, generator=generator)
    expected = naive_experts(x, index, route, gate_up.weight, down.weight, limit)
    found = experts.expert_mlp(x, index, route, gate_up, down, limit)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)
    for form in (experts._gathered, experts._dense):
        found = form(x, index, route, gate_up.weight, down.weight, limit)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)


def test_grouped_linear_is_block_diagonal():
    generator = torch.Generator().manual_seed(0)
    matrix = Weight((6, 5), torch.float32)  # 3 groups of [2, 5]
    matrix.weight.copy_(torch.randn(6, 5, generator=generator))
    x = torch.randn(4, 3, 5, generator=generator)
    found = grouped_linear(x, matrix, 3)
    blocks = torch.block_diag(*matrix.weight.view(3, 2, 5))  # [6, 15]
    torch.testing.assert_close(found, x.reshape(4, 15) @ blocks.T, rtol=0, atol=1e-6)
    torch.testing.assert_close(linear(x, matrix), x @ matrix.weight.T, rtol=0, atol=1e-6)


def test_write_rows_replaces_exactly_the_indexed_rows():
    """Of a bfloat16 buffer, by fp32 rows: cast, and nothing else moves."""
    buffer = torch.arange(12, dtype=torch.bfloat16).view(6, 2)
    before = buffer.clone()
    rows = torch.tensor([[[0.1, 0.2]], [[0.3, 0.4]]])
    index = torch.tensor([[4], [1]])
    write_rows(buffer, index, rows)
    assert torch.equal(read_rows(buffer, index), rows.bfloat16())
    untouched = torch.tensor([0, 2, 3, 5])
    assert torch.equal(buffer[untouched], before[untouched])


FIELDS = [value for value in vars(Control).values() if isinstance(value, type(Control.POS))]


@given(st.sets(st.sampled_from(FIELDS), min_size=1), st.booleans())
@settings(max_examples=50, deadline=None)
def test_with_fields_replaces_only_the_named_columns(fields, shorter):
    """In any combination; a shorter value replaces a prefix of its field."""
    rows = torch.arange(2 * Control.WIDTH).view(2, -1)
    expected, values = rows.clone(), {}
    for field in fields:
        length = max(1, field.length - shorter)
        values[field] = -torch.ones(2, length, dtype=torch.int64) * (field.offset + 1)
        expected[:, field.offset : field.offset + length] = values[field]
    found = with_fields(rows, values)
    assert torch.equal(found, expected)
    for field, value in values.items():
        assert torch.equal(read_field(found, field)[:, : value.shape[1]], value)
