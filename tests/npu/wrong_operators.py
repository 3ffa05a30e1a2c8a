"""For every kind of operator that computes, what an engine or a converter may confuse in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.oracles.ge_evaluator.attributes import value, values
from tests.oracles.ge_evaluator.operators import RULES, Rule

Wrong = Callable[[Rule], Rule]
"""From the rule of an operator to that of the one in its place."""

Change = Callable[[Tensor], Tensor]


def as_kind(kind: str) -> Wrong:
    return lambda right: RULES[kind]


def computing(function: Callable[..., Tensor]) -> Wrong:
    """Of the operands alone."""
    return lambda right: lambda operator, *operands: function(*operands)


def with_operand(place: int, change: Change) -> Wrong:
    """One operand is another; if it is not fed, all is as it was."""

    def wrong(right: Rule) -> Rule:
        def run(operator: Any, *operands: Tensor | None) -> Any:
            changed = list(operands)
            if (operand := operands[place]) is not None and operand.numel():
                changed[place] = change(operand)
            return right(operator, *changed)

        return run

    return wrong


def with_named(name: str, change: Change) -> Wrong:
    """The same of a fused operator, by the operand's name in its definition."""

    def wrong(right: Rule) -> Rule:
        def run(operator: Any, *operands: Tensor | None) -> Any:
            names = [one.decode() for one in operator.attr["_input_name_key"].list.s]
            if name not in names:
                return right(operator, *operands)
            return with_operand(names.index(name), change)(right)(operator, *operands)

        return run

    return wrong


def with_exchanged(one: int, other: int) -> Wrong:
    def wrong(right: Rule) -> Rule:
        def run(operator: Any, *operands: Tensor | None) -> Any:
            changed = list(operands)
            changed[one], changed[other] = operands[other], operands[one]
            return right(operator, *changed)

        return run

    return wrong


def with_index(change: Callable[[Tensor, int], Tensor]) -> Wrong:
    """Of the rows of operand 0, by operand 1."""

    def wrong(right: Rule) -> Rule:
        def run(operator: Any, x: Tensor, index: Tensor, *rest: Tensor) -> Any:
            axis = value(rest[0]) if rest and operator.type == "GatherV2" else 0
            return right(operator, x, change(index, x.shape[axis]), *rest)

        return run

    return wrong


def with_result(change: Change, place: int = 0) -> Wrong:
    def wrong(right: Rule) -> Rule:
        def run(operator: Any, *operands: Tensor | None) -> Any:
            results = right(operator, *operands)
            if isinstance(results, Tensor):
                return change(results)
            return [change(one) if number == place else one for number, one in enumerate(results)]

        return run

    return wrong


def with_attribute(name: str, change: Callable[[Any], Any]) -> Wrong:
    def wrong(right: Rule) -> Rule:
        def run(operator: Any, *operands: Tensor | None) -> Any:
            changed = type(operator)()
            changed.CopyFrom(operator)
            value = changed.attr[name]
            field = value.WhichOneof("value")
            setattr(value, field, change(getattr(value, field)))
            return right(changed, *operands)

        return run

    return wrong


def next_index(index: Tensor, rows: int) -> Tensor:
    return (index + 1) % rows


def rolled(axis: int) -> Change:
    """Every value one place further."""
    return lambda x: x.roll(1, axis) if x.dim() else x


def reversed_rows(x: Tensor) -> Tensor:
    return x.flip(0)


def one_more(x: Tensor) -> Tensor:
    return ~x if x.dtype == torch.bool else x + 1


def without_bound(sign: int) -> Change:
    """A bound that no value here reaches, exact in every type."""
    return lambda bound: torch.full_like(bound, sign * 2**30)


def narrower(x: Tensor) -> Tensor:
    """Through a type of 8 bits of precision."""
    return x.to(torch.bfloat16 if x.is_floating_point() else torch.int8).to(x.dtype)


def read_in_other_order(right: Rule) -> Rule:
    """A reshape that takes the values as they lie with axes turned round."""
    return lambda operator, x, shape: right(operator, x.permute(*reversed(range(x.dim()))), shape)


def left_in_order(right: Rule) -> Rule:
    """The shape of a transposition with the values not moved."""
    return lambda operator, x, order: x.reshape(right(operator, x, order).shape).clone()


def over_next_axis(right: Rule) -> Rule:
    return lambda operator, x: torch.softmax(x, operator.attr["axes"].list.i[0] - 1)


def shifted_slice(right: Rule) -> Rule:
    """From one element later on, the first after the last."""

    def run(operator: Any, x: Tensor, begin: Tensor, end: Tensor, axes: Tensor, strides: Tensor) -> Any:
        for axis in values(axes):
            x = x.roll(-1, axis)
        return right(operator, x, begin, end, axes, strides)

    return run


def shifted_split(right: Rule) -> Rule:
    return lambda operator, x, sizes, dim: right(operator, x.roll(-1, value(dim)), sizes, dim)


def parts_exchanged(right: Rule) -> Rule:
    """Of a concatenation, whose last operand is the axis."""
    return lambda operator, *operands: right(operator, *operands[-2::-1], operands[-1])


def reducing(function: Callable[..., Tensor]) -> Wrong:
    def run(operator: Any, x: Tensor, axes: Tensor) -> Tensor:
        return function(x, values(axes), keepdim=operator.attr["keep_dims"].b)

    return lambda right: run


def exclusive(right: Rule) -> Rule:
    return lambda operator, x, axis: right(operator, x, axis) - x


def cutting(right: Rule) -> Rule:
    """A quantisation that cuts where it should round."""

    def run(operator: Any, x: Tensor) -> list[Tensor]:
        codes, scale = right(operator, x)
        return [torch.trunc(x.float() / scale[..., None]).nan_to_num(0.0).to(codes.dtype), scale]

    return run


_MATRICES = {
    "inner axis shifted": with_operand(0, rolled(-1)),
    "rows shifted": with_operand(0, rolled(-2)),
}

_INDEXED = {"next row": with_index(next_index)}

WRONG: dict[str, dict[str, Wrong]] = {
    "Abs": {"Identity": as_kind("Identity")},
    "Add": {"Sub": as_kind("Sub")},
    "ArgMaxV2": {"smallest": with_operand(0, torch.neg)},
    "ArgMaxWithValue": {"smallest": with_operand(0, torch.neg)},
    "BatchMatMul": _MATRICES
    | {
        "left transposed": with_attribute("adj_x1", lambda flag: not flag),
        "right transposed": with_attribute("adj_x2", lambda flag: not flag),
        "batches shifted": with_operand(1, rolled(0)),
    },
    "BroadcastTo": {"backwards": with_result(lambda x: x.flip(tuple(range(x.dim()))))},
    "Cast": {"narrower": with_result(narrower), "of the next value": with_result(rolled(-1))},
    "ClipByValueV2": {
        "without lower": with_operand(1, without_bound(-1)),
        "without upper": with_operand(2, without_bound(1)),
    },
    "ClippedSwiglu": {
        "alpha 1.1": with_attribute("alpha", lambda alpha: 1.1),
        "half the limit": with_attribute("limit", lambda limit: limit / 2),
        "halves exchanged": with_named("x", lambda x: x.roll(x.shape[-1] // 2, -1)),
    },
    "ConcatV2": {"other order": parts_exchanged},
    "Const": {"one more": with_result(one_more)},
    "Cos": {"Sin": as_kind("Sin")},
    "Cumsum": {"exclusive": exclusive},
    "DynamicQuant": {"cut": cutting, "twice the scale": with_result(lambda scale: 2 * scale, 1)},
    "Equal": {"NotEqual": as_kind("NotEqual")},
    "Exp": {"Identity": as_kind("Identity")},
    "Fill": {"one more": with_result(one_more)},
    "FloorDiv": {"FloorMod": as_kind("FloorMod")},
    "FloorMod": {"FloorDiv": as_kind("FloorDiv")},
    "Gather": _INDEXED,
    "GatherElements": {"of the next value": with_result(rolled(-1))},
    "GatherV2": _INDEXED,
    "Greater": {"GreaterEqual": as_kind("GreaterEqual"), "Less": as_kind("Less")},
    "GreaterEqual": {"Greater": as_kind("Greater"), "LessEqual": as_kind("LessEqual")},
    "GroupedMatmul": {
        "next group": with_named("weight0", rolled(0)),
        "inner axis shifted": with_named("x0", rolled(-1)),
        "groups shifted": with_named("group_list", rolled(0)),
        "transposed": with_attribute("transpose_weight", lambda flag: not flag),
    },
    "Less": {"LessEqual": as_kind("LessEqual"), "Greater": as_kind("Greater")},
    "LessEqual": {"Less": as_kind("Less"), "GreaterEqual": as_kind("GreaterEqual")},
    "Log": {"Identity": as_kind("Identity")},
    "LogicalAnd": {"LogicalOr": as_kind("LogicalOr")},
    "LogicalOr": {"LogicalAnd": as_kind("LogicalAnd")},
    "MatMul": _MATRICES
    | {
        "left transposed": with_attribute("transpose_x1", lambda flag: not flag),
        "right transposed": with_attribute("transpose_x2", lambda flag: not flag),
    },
    "Minimum": {"largest": computing(torch.maximum)},
    "MoeFinalizeRoutingV2": {
        "weights shifted": with_named("scales", rolled(-1)),
        "rows shifted": with_named("expanded_row_idx", rolled(0)),
    },
    "MoeGatingTopK": {
        "scale 1": with_attribute("routed_scaling_factor", lambda scale: 1.0),
        "smallest": with_named("x", torch.neg),
        "no bias": with_named("bias", torch.zeros_like),
        "other token": with_named("input_ids", rolled(0)),
    },
    "MoeInitRoutingV3": {
        "rows shifted": with_named("x", rolled(0)),
        "choices shifted": with_named("expert_idx", rolled(-1)),
        "places shifted": with_result(rolled(0), 1),
        "counts shifted": with_result(rolled(0), 2),
    },
    "Mul": {"Add": as_kind("Add")},
    "Neg": {"Identity": as_kind("Identity")},
    "NotEqual": {"Equal": as_kind("Equal")},
    "Pack": {"other order": lambda right: lambda operator, *parts: right(operator, *reversed(parts))},
    "QuantBatchMatmulV3": {
        "inner axis shifted": with_named("x1", rolled(-1)),
        "scales shifted": with_named("scale", rolled(0)),
        "scales of rows shifted": with_named("pertoken_scale", rolled(0)),
        "transposed": with_attribute("transpose_x2", lambda flag: not flag),
    },
    "Range": {"one more": with_result(one_more)},
    "RealDiv": {"Mul": as_kind("Mul"), "exchanged": with_exchanged(0, 1)},
    "ReduceMean": {"sum": as_kind("ReduceSum")},
    "ReduceSum": {
        "largest": reducing(Tensor.amax),
        "mean": reducing(lambda x, axes, keepdim: x.double().mean(axes, keepdim=keepdim).to(x.dtype)),
    },
    "Relu": {"Identity": as_kind("Identity")},
    "Reshape": {"other order": read_in_other_order},
    "RmsNorm": {
        "epsilon 0.1": with_attribute("epsilon", lambda epsilon: 0.1),
        "no weight": with_named("gamma", torch.ones_like),
    },
    "RotaryPositionEmbedding": {"exchanged": with_exchanged(1, 2), "other way": with_operand(2, torch.neg)},
    "Round": {"Identity": as_kind("Identity")},
    "Rsqrt": {"Sqrt": as_kind("Sqrt")},
    "ScatterNdUpdate": {
        "next row": with_index(next_index),
        "rows exchanged": with_operand(2, reversed_rows),
    },
    "SelectV2": {"exchanged": with_exchanged(1, 2)},
    "Sigmoid": {"Relu": as_kind("Relu")},
    "Sin": {"Cos": as_kind("Cos")},
    "SoftmaxV2": {"other axis": over_next_axis},
    "SplitV": {"one later": shifted_split},
    "Sqrt": {"Identity": as_kind("Identity")},
    "StridedSliceV2": {"one later": shifted_slice},
    "Sub": {"Add": as_kind("Add"), "exchanged": with_exchanged(0, 1)},
    "TopKV2": {"smallest": with_operand(0, torch.neg), "first twice": with_result(rolled(-1), 1)},
    "Transpose": {"values not moved": left_in_order},
}
"""By kind, then by what is wrong."""

WITHOUT_FAULT = {
    "Identity": "gives what it takes",
    "Shape": "a shape is known when a graph is compiled",
    "Unsqueeze": "values stay as they lie, and another axis is another shape",
}
"""Kinds that compute nothing that could be wrong in a graph that an engine accepts."""
