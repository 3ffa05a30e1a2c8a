"""Every entry of the table computes what aten computes, in ONNX Runtime, at the edges of its meaning too."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nextn.compile.targets.onnx.emitter import CONVERTERS
from nextn.runtime.contract.errors import ExecutionError
from tests.compile.onnx.run import computed, functional_of, model_of, operators

aten: Any = torch.ops.aten

FLOATS = torch.tensor([[-2.5, -0.0, 0.5], [3.0, 0.5, -7.25]])
OTHERS = torch.tensor([[2.0, -0.0, 0.25], [3.0, 8.0, -7.5]])
POSITIVE = torch.tensor([[1e-30, 0.5, 1.0], [3.0, 1e30, 7.0]])
TIES = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
INTEGERS = torch.tensor([[-7, 0, 7], [2**62 + 12345, 2147483646, -2147483648]])
ODD = torch.tensor([[3, 3, 5], [2147483647, 2147483647, 7]])
YES, NO = torch.tensor([[True, True, False, False]]), torch.tensor([[True, False, True, False]])
ROWS = torch.arange(12.0).reshape(4, 3)
CUBE = torch.arange(24.0).reshape(2, 3, 4)


def logical(target: Any) -> Callable[..., Tensor]:
    """State has no booleans: the answer as integers."""
    return lambda *inputs: aten._to_copy.default(target(*inputs), dtype=torch.int64)


def written(index: Tensor, rows: Tensor) -> Tensor:
    """The rows that no write names keep their value."""
    return aten.index_put.default(aten.full.default([4, 3], 9.0, dtype=torch.float32), [index], rows)


Sample = tuple[Callable[..., Tensor], tuple[Tensor, ...]]

SAMPLES: dict[Any, list[Sample]] = {
    aten.add.Tensor: [(aten.add.Tensor, (FLOATS, OTHERS)), (lambda x: aten.add.Tensor(x, 3), (INTEGERS,))],
    aten.sub.Tensor: [(aten.sub.Tensor, (INTEGERS, ODD)), (lambda x: aten.sub.Tensor(1.0, x), (FLOATS,))],
    aten.mul.Tensor: [
        (aten.mul.Tensor, (FLOATS, OTHERS[:1])),
        (lambda x, flag: aten.mul.Tensor(x, flag), (torch.tensor([[4, 5, 6, 7]]), YES)),
        (lambda x, y: aten.mul.Tensor(x, y), (FLOATS, ODD)),
    ],
    aten.div.Tensor: [(aten.div.Tensor, (FLOATS, POSITIVE)), (aten.div.Tensor, (ODD, ODD + 1))],
    aten.div.Tensor_mode: [
        (lambda x: aten.div.Tensor_mode(x, 2147483647, rounding_mode="floor"), (INTEGERS,)),
        (lambda x: aten.div.Tensor_mode(x, 4, rounding_mode="floor"), (INTEGERS,)),
    ],
    aten.remainder.Scalar: [(lambda x: aten.remainder.Scalar(x, 2147483647), (INTEGERS,))],
    aten.remainder.Tensor: [(aten.remainder.Tensor, (INTEGERS, ODD))],
    aten.minimum.default: [(aten.minimum.default, (INTEGERS, ODD))],
    aten.maximum.default: [(aten.maximum.default, (FLOATS, OTHERS))],
    aten.bitwise_and.Tensor: [(logical(aten.bitwise_and.Tensor), (YES, NO))],
    aten.bitwise_or.Tensor: [(logical(aten.bitwise_or.Tensor), (YES, NO))],
    aten.bitwise_not.default: [(logical(aten.bitwise_not.default), (YES,))],
    **{
        target: [(logical(target), (FLOATS, OTHERS)), (logical(target), (INTEGERS, INTEGERS[:, :1]))]
        for target in (
            *(aten.eq.Tensor, aten.ne.Tensor, aten.gt.Tensor, aten.ge.Tensor, aten.lt.Tensor, aten.le.Tensor),
        )
    },
    **{
        target: [
            (logical(lambda x, target=target: target(x, 0)), (INTEGERS,)),
            (logical(lambda x, target=target: target(x, 0.5)), (FLOATS,)),
        ]
        for target in (
            *(aten.eq.Scalar, aten.ne.Scalar, aten.gt.Scalar, aten.ge.Scalar, aten.lt.Scalar, aten.le.Scalar),
        )
    },
    **{
        target: [(target, (FLOATS,))]
        for target in (
            *(aten.abs.default, aten.cos.default, aten.exp.default, aten.neg.default, aten.relu.default),
            *(aten.sigmoid.default, aten.sin.default),
        )
    },
    **{
        target: [(target, (POSITIVE,))]
        for target in (aten.log.default, aten.sqrt.default, aten.rsqrt.default)
    },
    aten.clamp.default: [
        (lambda x: aten.clamp.default(x, None, 0.5), (FLOATS,)),
        (lambda x: aten.clamp.default(x, -1.0, 1.0), (FLOATS,)),
        (lambda x: aten.clamp.default(x, 0), (INTEGERS,)),
    ],
    aten.where.self: [
        (lambda flag, x: aten.where.self(flag, x, aten.scalar_tensor.default(-1e30)), (YES, TIES)),
        (
            lambda flag, x: aten.where.self(flag, x, aten.scalar_tensor.default(3, dtype=torch.int64)),
            (YES, torch.tensor([[4, 5, 6, 7]])),
        ),
    ],
    aten._to_copy.default: [
        (lambda x: aten._to_copy.default(x, dtype=torch.float32), (INTEGERS,)),
        (lambda x: aten._to_copy.default(x, dtype=torch.int64), (ROWS + 0.75,)),
    ],
    aten.sum.dim_IntList: [
        (lambda x: aten.sum.dim_IntList(x, [-1]), (CUBE,)),
        (lambda x: aten.sum.dim_IntList(x, [1], True), (CUBE,)),
        (lambda flag: aten.sum.dim_IntList(flag, [1]), (YES,)),
    ],
    aten.mean.dim: [(lambda x: aten.mean.dim(x, [-1], True), (CUBE,))],
    aten.argmax.default: [(lambda x: aten.argmax.default(x, -1), (TIES,))],
    aten.cumsum.default: [(lambda x: aten.cumsum.default(x, -1), (INTEGERS,))],
    aten._softmax.default: [(lambda x: aten._softmax.default(x, -1, False), (FLOATS * 40,))],
    aten.topk.default: [
        (lambda x: aten.topk.default(x, 3)[0], (CUBE,)),
        (lambda x: aten.topk.default(x, 2, -1)[1], (FLOATS,)),
    ],
    aten.view.default: [(lambda x: aten.view.default(x, [4, 6]), (CUBE,))],
    aten._unsafe_view.default: [(lambda x: aten._unsafe_view.default(x, [4, 6]), (CUBE,))],
    aten.unsqueeze.default: [(lambda x: aten.unsqueeze.default(x, 1), (ROWS,))],
    aten.permute.default: [(lambda x: aten.clone.default(aten.permute.default(x, [2, 0, 1])), (CUBE,))],
    aten.expand.default: [(lambda x: aten.expand.default(x, [-1, 5]), (ROWS[:, :1],))],
    aten.clone.default: [(aten.clone.default, (ROWS,))],
    aten.alias.default: [(lambda x: aten.clone.default(aten.alias.default(x)), (ROWS,))],
    aten.cat.default: [
        (lambda x, y: aten.cat.default([x, y, x], -1), (FLOATS, OTHERS)),
        (lambda x, y: aten.cat.default([x, y]), (FLOATS, OTHERS)),
    ],
    aten.split_with_sizes.default: [(lambda x: aten.split_with_sizes.default(x, [1, 3], -1)[1], (CUBE,))],
    operator.getitem: [(lambda x: aten.split_with_sizes.default(x, [1, 3])[1], (ROWS,))],
    aten.slice.Tensor: [
        (lambda x: aten.slice.Tensor(x, 1, 1, -1), (ROWS,)),
        (lambda x: aten.slice.Tensor(x, 0, 0, 9223372036854775807, 2), (ROWS,)),
        (lambda x: aten.slice.Tensor(x, 1), (ROWS,)),
    ],
    aten.select.int: [(lambda x: aten.select.int(x, 1, -1), (CUBE,))],
    aten.index.Tensor: [
        (lambda x, index: aten.index.Tensor(x, [index]), (ROWS, torch.tensor([[3, 0], [3, 1]])))
    ],
    aten.index_put.default: [(written, (torch.tensor([2, 0]), ROWS[:2]))],
    aten.gather.default: [
        (lambda x, index: aten.gather.default(x, 1, index), (FLOATS, torch.tensor([[2], [0]])))
    ],
    aten.arange.start_step: [
        (lambda x: aten.add.Tensor(x, aten.arange.start_step(-4, 5, 3)), (ODD,)),
        (lambda x: aten.add.Tensor(x, aten.arange.start_step(0, 3)), (ODD,)),
    ],
    aten.scalar_tensor.default: [
        (lambda x: aten.add.Tensor(x, aten.scalar_tensor.default(0.1)), (FLOATS,)),
    ],
    aten.full.default: [
        (lambda x: aten.add.Tensor(x, aten.full.default([2, 3], 7, dtype=torch.int64)), (ODD,)),
        (lambda x: aten.add.Tensor(aten.full.default([100, 3], 0.25, dtype=torch.float32), x), (FLOATS[:1],)),
    ],
    aten.full_like.default: [(lambda x: aten.add.Tensor(x, aten.full_like.default(x, 7)), (ODD,))],
    aten.mm.default: [
        (aten.mm.default, (ROWS, FLOATS.T.contiguous())),
        (lambda x, y: aten.mm.default(x, aten.permute.default(y, [1, 0])), (ROWS, FLOATS)),
    ],
    aten.bmm.default: [
        (lambda x, y: aten.bmm.default(x, aten.permute.default(y, [0, 2, 1])), (CUBE, CUBE + 1)),
    ],
}

EXACT = (torch.int64, torch.bool)


@pytest.mark.parametrize("target", CONVERTERS, ids=str)
def test_values_are_those_of_aten(target: Any) -> None:
    for function, inputs in SAMPLES[target]:
        functional = functional_of(function, *inputs)
        assert target in {node.target for node in functional.graph.nodes}, "the sample is one of it"
        expected = function(*inputs)
        found = computed(function, *inputs).view(expected.shape)
        tolerance = 0 if expected.dtype in EXACT else 2e-7
        assert torch.allclose(found, expected, rtol=tolerance, atol=tolerance), (found, expected)


def test_every_entry_has_a_sample() -> None:
    assert set(SAMPLES) == set(CONVERTERS)


def test_an_operator_that_the_table_lacks() -> None:
    functional = functional_of(lambda x: aten.erf.default(x), FLOATS)
    with pytest.raises(
        ExecutionError, match=r"graph accept\.b1 has an operator without a converter to ONNX"
    ) as caught:
        model_of(functional)
    assert caught.value.key == "aten.erf.default"


def test_what_nothing_needs_is_left_out() -> None:
    """A transpose that its product reads untransposed."""
    function = SAMPLES[aten.mm.default][1][0]
    found = operators(model_of(functional_of(function, ROWS, FLOATS)))
    assert "Gemm" in found and "Transpose" not in found
