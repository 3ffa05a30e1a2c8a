"""Converters of elementwise aten operators, reductions and matrix products.

A weight is never transposed: it is as large as a model, and shared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from nextn.compile.targets.onnx.emitter import (
    ELEMENT_TYPES,
    Emitter,
    arguments_of,
    aten,
    converts,
    tensor_of,
)

_BINARY = {
    aten.add.Tensor: "Add",
    aten.sub.Tensor: "Sub",
    aten.mul.Tensor: "Mul",
    aten.div.Tensor: "Div",
    aten.minimum.default: "Min",
    aten.maximum.default: "Max",
    aten.bitwise_and.Tensor: "And",
    aten.bitwise_or.Tensor: "Or",
    # The sign of the divisor, as aten's: `fmod` is off.
    aten.remainder.Scalar: "Mod",
    aten.remainder.Tensor: "Mod",
}

_COMPARISONS = {
    aten.eq.Tensor: "Equal",
    aten.eq.Scalar: "Equal",
    aten.gt.Tensor: "Greater",
    aten.gt.Scalar: "Greater",
    aten.ge.Tensor: "GreaterOrEqual",
    aten.ge.Scalar: "GreaterOrEqual",
    aten.lt.Tensor: "Less",
    aten.lt.Scalar: "Less",
    aten.le.Tensor: "LessOrEqual",
    aten.le.Scalar: "LessOrEqual",
}

_UNARY = {
    aten.abs.default: "Abs",
    aten.cos.default: "Cos",
    aten.exp.default: "Exp",
    aten.log.default: "Log",
    aten.bitwise_not.default: "Not",
    aten.neg.default: "Neg",
    aten.relu.default: "Relu",
    aten.sigmoid.default: "Sigmoid",
    aten.sin.default: "Sin",
    aten.sqrt.default: "Sqrt",
}

_REDUCTIONS = {aten.sum.dim_IntList: "ReduceSum", aten.mean.dim: "ReduceMean"}


@converts(*_BINARY)
def binary(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    dtype = tensor_of(node).dtype
    operator = _BINARY[node.target]
    assert given.get("alpha", 1) == 1, node.format_node()
    # `And`, `Or` are of booleans, `Mod` without `fmod` of integers.
    assert operator not in ("And", "Or") or dtype == torch.bool, node.format_node()
    assert operator != "Mod" or dtype == torch.int64, node.format_node()
    emit.finish(node, operator, emit.value(node.args[0], dtype), emit.value(node.args[1], dtype))


@converts(*_COMPARISONS)
def comparison(emit: Emitter, node: fx.Node) -> None:
    emit.finish(node, _COMPARISONS[node.target], *_compared(emit, node))


@converts(aten.ne.Tensor, aten.ne.Scalar)
def not_equal(emit: Emitter, node: fx.Node) -> None:
    emit.finish(node, "Not", emit.add("Equal", *_compared(emit, node)))


def _compared(emit: Emitter, node: fx.Node) -> tuple[str, str]:
    left, right = node.args
    examples: Any = [tensor_of(one) if isinstance(one, fx.Node) else one for one in (left, right)]
    dtype = torch.result_type(*examples)
    return emit.value(left, dtype), emit.value(right, dtype)


@converts(*_UNARY)
def unary(emit: Emitter, node: fx.Node) -> None:
    operator, dtype = _UNARY[node.target], tensor_of(node).dtype
    assert (operator == "Not") == (dtype == torch.bool), node.format_node()
    emit.finish(node, operator, emit.value(node.args[0], dtype))


@converts(aten.rsqrt.default)
def reciprocal_root(emit: Emitter, node: fx.Node) -> None:
    emit.finish(node, "Reciprocal", emit.add("Sqrt", emit.value(node.args[0])))


@converts(aten.div.Tensor_mode)
def floor_division(emit: Emitter, node: fx.Node) -> None:
    """`Div` of integers rounds towards 0; without its remainder the dividend has nothing to round."""
    dtype = tensor_of(node).dtype
    assert node.kwargs["rounding_mode"] == "floor" and dtype == torch.int64, node.format_node()
    dividend, divisor = (emit.value(operand, dtype) for operand in node.args)
    multiple = emit.add("Sub", dividend, emit.add("Mod", dividend, divisor))
    emit.finish(node, "Div", multiple, divisor)


@converts(aten.clamp.default)
def clamp(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    dtype = tensor_of(node).dtype
    # An absent limit is an input without a name.
    low, high = ("" if given[end] is None else emit.value(given[end], dtype) for end in ("min", "max"))
    emit.finish(node, "Clip", emit.value(given["self"], dtype), low, high)


@converts(aten.where.self)
def where(emit: Emitter, node: fx.Node) -> None:
    condition, *choices = node.args
    dtype = tensor_of(node).dtype
    emit.finish(node, "Where", emit.value(condition), *(emit.value(choice, dtype) for choice in choices))


@converts(aten._to_copy.default)
def to_copy(emit: Emitter, node: fx.Node) -> None:
    emit.finish(node, "Cast", emit.value(node.args[0]), to=ELEMENT_TYPES[tensor_of(node).dtype])


@converts(*_REDUCTIONS)
def reduction(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    value = emit.value(given["self"], tensor_of(node).dtype)
    axes = emit.builder.integers(*given["dim"])
    emit.finish(node, _REDUCTIONS[node.target], value, axes, keepdims=int(given["keepdim"]))


@converts(aten.argmax.default)
def argmax(emit: Emitter, node: fx.Node) -> None:
    """The first of equals, in both."""
    given = arguments_of(node)
    emit.finish(node, "ArgMax", emit.value(given["self"]), axis=given["dim"], keepdims=int(given["keepdim"]))


@converts(aten.cumsum.default)
def cumulative_sum(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    axis = emit.builder.scalar(given["dim"], torch.int64)
    emit.finish(node, "CumSum", emit.value(given["self"], tensor_of(node).dtype), axis)


@converts(aten._softmax.default)
def softmax(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    emit.finish(node, "Softmax", emit.value(given["self"], tensor_of(node).dtype), axis=given["dim"])


@converts(aten.topk.default)
def top_k(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    inputs = (emit.value(given["self"]), emit.builder.integers(given["k"]))
    largest = int(given["largest"])
    emit.bind(node, *emit.builder.node("TopK", inputs, outputs=2, axis=given["dim"], largest=largest))


@converts(aten.mm.default)
def matrix_product(emit: Emitter, node: fx.Node) -> None:
    left, right = node.args
    if (stored := transposed_source(right)) is not None:
        emit.finish(node, "Gemm", emit.value(left), emit.value(stored), transB=1)
    else:
        emit.finish(node, "MatMul", emit.value(left), emit.value(right))


@converts(aten.bmm.default)
def batched_product(emit: Emitter, node: fx.Node) -> None:
    """`MatMul` transposes no operand; with a transposed weight the product is computed transposed."""
    left, right = node.args
    stored = transposed_source(right)
    if stored is None or not emit.is_weight(stored):
        emit.finish(node, "MatMul", emit.value(left), emit.value(right))
        return
    columns = emit.add("Transpose", emit.value(left), perm=(0, 2, 1))
    emit.finish(node, "Transpose", emit.add("MatMul", emit.value(stored), columns), perm=(0, 2, 1))


def transposed_source(operand: Any) -> fx.Node | None:
    """What `operand` is the transpose of, in its last two axes."""
    if not isinstance(operand, fx.Node) or operand.target is not aten.permute.default:
        return None
    arguments: Any = operand.args
    source, order = arguments
    last = len(order) - 1
    swapped = [*range(last - 1), last, last - 1]
    return source if list(order) == swapped else None
