"""What each GE operator computes. Operands that an operator wants of one type must be of one type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.oracles.ge_dtypes import ENGINE_DTYPES
from tests.oracles.ge_evaluator.attributes import attribute, integers, value, values

Rule = Callable[..., "Tensor | Sequence[Tensor]"]


def _unary(function: Callable[[Tensor], Tensor]) -> Rule:
    return lambda operator, x: function(x)


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    def run(operator: Any, x: Tensor, y: Tensor) -> Tensor:
        assert x.dtype == y.dtype, f"{operator.name}: {x.dtype} and {y.dtype}"
        return function(x, y)

    return run


def _scaled(function: Callable[[Tensor], Tensor]) -> Rule:
    """Exp and Log of the natural base, as base -1 says."""

    def run(operator: Any, x: Tensor) -> Tensor:
        assert [attribute(operator, name) for name in ("base", "scale", "shift")] == [-1.0, 1.0, 0.0]
        return function(x)

    return run


def _reduction(function: Callable[..., Tensor]) -> Rule:
    return lambda operator, x, axes: function(x, dim=values(axes), keepdim=attribute(operator, "keep_dims"))


def _matrix_product(first: str, second: str) -> Rule:
    def run(operator: Any, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        assert a.dtype == b.dtype, operator.name
        left = a.transpose(-1, -2) if attribute(operator, first) else a
        right = b.transpose(-1, -2) if attribute(operator, second) else b
        product = torch.matmul(left, right)
        return product if bias is None else product + bias

    return run


def _select(operator: Any, condition: Tensor, then: Tensor, other: Tensor) -> Tensor:
    assert condition.dtype == torch.bool and then.dtype == other.dtype, operator.name
    return torch.where(condition, then, other)


def _gather(operator: Any, x: Tensor, index: Tensor, axis: Tensor | None = None) -> Tensor:
    assert attribute(operator, "batch_dims") == 0
    dim = 0 if axis is None else value(axis)
    if attribute(operator, "negative_index_support"):
        index = torch.where(index < 0, index + x.shape[dim], index)
    assert bool(((index >= 0) & (index < x.shape[dim])).all()), f"{operator.name}: index out of range"
    rows = torch.index_select(x, dim, index.reshape(-1).to(torch.int64))
    return rows.reshape([*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]])


def _scatter_rows(operator: Any, buffer: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """In place: the output is the memory of the first operand."""
    assert buffer.dtype == rows.dtype and index.shape[-1] == 1, operator.name
    places = index.squeeze(-1)
    assert bool(((places >= 0) & (places < len(buffer))).all()), f"{operator.name}: index out of range"
    # One by one, so that the last of equal places wins and nothing is summed.
    for place, row in zip(places.reshape(-1).tolist(), rows.reshape(-1, *buffer.shape[1:]), strict=True):
        buffer[place] = row
    return buffer


def _strided_slice(
    operator: Any, x: Tensor, begin: Tensor, end: Tensor, axes: Tensor, strides: Tensor
) -> Tensor:
    masks = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    assert not any(attribute(operator, mask) for mask in masks)
    places = [slice(None)] * x.dim()
    for axis, first, last, step in zip(*map(values, (axes, begin, end, strides)), strict=True):
        places[axis] = slice(first, last, step)
    return x[tuple(places)].clone()


def _split(operator: Any, x: Tensor, sizes: Tensor, dim: Tensor) -> list[Tensor]:
    parts = torch.split(x, values(sizes), value(dim))
    assert len(parts) == attribute(operator, "num_split")
    return [part.clone() for part in parts]


def _top_k(operator: Any, x: Tensor, k: Tensor) -> list[Tensor]:
    found = torch.topk(
        x,
        value(k),
        dim=attribute(operator, "dim"),
        largest=attribute(operator, "largest"),
        sorted=attribute(operator, "sorted"),
    )
    return [found.values, found.indices.to(torch.int32)]


def _largest(operator: Any, x: Tensor) -> list[Tensor]:
    found = x.max(attribute(operator, "dimension"), keepdim=attribute(operator, "keep_dims"))
    return [found.indices.to(torch.int32), found.values]


def _range(operator: Any, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    assert start.dtype == limit.dtype == delta.dtype, operator.name
    return torch.arange(value(start), value(limit), value(delta), dtype=start.dtype)


def _softmax(operator: Any, x: Tensor) -> Tensor:
    (dim,) = integers(operator, "axes")
    assert not attribute(operator, "half_to_float")
    return torch.softmax(x, dim)


def _cumulative_sum(operator: Any, x: Tensor, axis: Tensor) -> Tensor:
    assert not attribute(operator, "exclusive") and not attribute(operator, "reverse")
    return torch.cumsum(x, value(axis)).to(x.dtype)


def _clip(operator: Any, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    assert x.dtype == low.dtype == high.dtype, operator.name
    return torch.minimum(torch.maximum(x, low), high)


def _concat(operator: Any, *operands: Tensor) -> Tensor:
    *parts, dim = operands
    assert len(parts) == attribute(operator, "N") and len({part.dtype for part in parts}) == 1
    return torch.cat(parts, value(dim))


def _unsqueeze(operator: Any, x: Tensor) -> Tensor:
    (axis,) = integers(operator, "axes")
    return x.unsqueeze(axis)


RULES: dict[str, Rule] = {
    "Abs": _unary(torch.abs),
    "Add": _binary(torch.add),
    "ArgMaxV2": lambda operator, x, dim: x.argmax(value(dim)).to(ENGINE_DTYPES[attribute(operator, "dtype")]),
    "ArgMaxWithValue": _largest,
    "BatchMatMul": _matrix_product("adj_x1", "adj_x2"),
    "BroadcastTo": lambda operator, x, shape: x.expand(values(shape)).clone(),
    "Cast": lambda operator, x: x.to(ENGINE_DTYPES[attribute(operator, "dst_type")]),
    "ClipByValueV2": _clip,
    "ConcatV2": _concat,
    "Cos": _unary(torch.cos),
    "Cumsum": _cumulative_sum,
    "Equal": _binary(torch.eq),
    "Exp": _scaled(torch.exp),
    "Fill": lambda operator, shape, x: torch.full(values(shape), x.item(), dtype=x.dtype),
    "FloorDiv": _binary(lambda x, y: torch.div(x, y, rounding_mode="floor")),
    "FloorMod": _binary(torch.remainder),
    "Gather": _gather,
    "GatherElements": lambda operator, x, index: x.gather(attribute(operator, "dim"), index.to(torch.int64)),
    "GatherV2": _gather,
    "Greater": _binary(torch.gt),
    "GreaterEqual": _binary(torch.ge),
    "Identity": _unary(lambda x: x),
    "Less": _binary(torch.lt),
    "LessEqual": _binary(torch.le),
    "Log": _scaled(torch.log),
    "LogicalAnd": _binary(torch.logical_and),
    "LogicalOr": _binary(torch.logical_or),
    "MatMul": _matrix_product("transpose_x1", "transpose_x2"),
    "Minimum": _binary(torch.minimum),
    "Mul": _binary(torch.mul),
    "Neg": _unary(torch.neg),
    "NotEqual": _binary(torch.ne),
    "Pack": lambda operator, *parts: torch.stack(parts, attribute(operator, "axis")),
    "RealDiv": _binary(torch.div),
    "ReduceMean": _reduction(torch.mean),
    "ReduceSum": _reduction(torch.sum),
    "Range": _range,
    "Relu": _unary(torch.relu),
    "Reshape": lambda operator, x, shape: x.reshape(values(shape)),
    "Round": _unary(torch.round),
    "Rsqrt": _unary(torch.rsqrt),
    "ScatterNdUpdate": _scatter_rows,
    "SelectV2": _select,
    "Shape": lambda operator, x: torch.tensor(x.shape, dtype=ENGINE_DTYPES[attribute(operator, "dtype")]),
    "Sigmoid": _unary(torch.sigmoid),
    "Sin": _unary(torch.sin),
    "SoftmaxV2": _softmax,
    "SplitV": _split,
    "Sqrt": _unary(torch.sqrt),
    "StridedSliceV2": _strided_slice,
    "Sub": _binary(torch.sub),
    "TopKV2": _top_k,
    "Transpose": lambda operator, x, order: x.permute(values(order)).clone(),
    "Unsqueeze": _unsqueeze,
}
"""By type. `Reshape`, `Unsqueeze` and `Identity` may return the memory of their operand, others not."""
