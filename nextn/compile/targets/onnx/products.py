"""Converters of matrix products. A weight is never transposed: it is as large as a model, and shared."""

from __future__ import annotations

from typing import Any

from torch import fx

from nextn.compile.targets.onnx.emitter import Emitter
from nextn.compile.targets.onnx.operator_table import aten, converts


@converts(aten.mm.default)
def matrix_product(emit: Emitter, node: fx.Node) -> None:
    left, right = node.args
    if (stored := transposed_source(right)) is not None:
        emit.finish(node, "Gemm", emit.value(left), emit.value(stored), transB=1)
    else:
        emit.finish(node, "MatMul", emit.value(left), emit.value(right))


@converts(aten.bmm.default)
def batched_product(emit: Emitter, node: fx.Node) -> None:
    """`MatMul` has no transposed form; with a transposed weight the product is computed transposed."""
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
