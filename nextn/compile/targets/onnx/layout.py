"""Converters of aten operators that move values: shapes, rows, constants."""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import numpy as np
import onnx
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

_WRITTEN_OUT = 64
"""A constant tensor of at most this many values is stored; a larger one is filled in at run time."""

_PAST_ANY_END = 2**63 - 1


@converts(aten.view.default, aten._unsafe_view.default)
def view(emit: Emitter, node: fx.Node) -> None:
    source = node.args[0]
    shape = tuple(tensor_of(node).shape)
    if isinstance(source, fx.Node) and emit.is_weight(source):
        emit.reshape_weight(node, source, shape)
    else:
        emit.finish(node, "Reshape", emit.value(source), emit.builder.integers(*shape))


@converts(aten.unsqueeze.default)
def unsqueeze(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    emit.finish(node, "Unsqueeze", emit.value(given["self"]), emit.builder.integers(given["dim"]))


@converts(aten.permute.default)
def permute(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    emit.finish(node, "Transpose", emit.value(given["self"]), perm=list(given["dims"]))


@converts(aten.expand.default)
def expand(emit: Emitter, node: fx.Node) -> None:
    shape = emit.builder.integers(*tensor_of(node).shape)
    emit.finish(node, "Expand", emit.value(node.args[0]), shape)


@converts(aten.clone.default, aten.alias.default)
def same(emit: Emitter, node: fx.Node) -> None:
    emit.bind(node, emit.value(node.args[0]))


@converts(aten.cat.default)
def concatenate(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    dtype = tensor_of(node).dtype
    pieces = (emit.value(piece, dtype) for piece in given["tensors"])
    emit.finish(node, "Concat", *pieces, axis=given["dim"])


@converts(aten.split_with_sizes.default)
def split(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    sizes = given["split_sizes"]
    inputs = (emit.value(given["self"]), emit.builder.integers(*sizes))
    emit.bind(node, *emit.builder.node("Split", inputs, outputs=len(sizes), axis=given["dim"]))


@converts(operator.getitem)
def member(emit: Emitter, node: fx.Node) -> None:
    arguments: Any = node.args
    source, index = arguments
    emit.bind(node, emit.members(source)[index])


@converts(aten.slice.Tensor)
def part(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    start = 0 if given["start"] is None else given["start"]
    end = _PAST_ANY_END if given["end"] is None else given["end"]
    vectors = (emit.builder.integers(number) for number in (start, end, given["dim"], given["step"]))
    emit.finish(node, "Slice", emit.value(given["self"]), *vectors)


@converts(aten.select.int)
def select(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    index = emit.builder.scalar(given["index"], torch.int64)
    emit.finish(node, "Gather", emit.value(given["self"]), index, axis=given["dim"])


@converts(aten.index.Tensor)
def read_rows(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    (index,) = given["indices"]
    emit.finish(node, "Gather", emit.value(given["self"]), emit.value(index), axis=0)


@converts(aten.index_put.default)
def write_rows(emit: Emitter, node: fx.Node) -> None:
    """A new value of the whole buffer. Only scratch rows may be named twice, and either will do for them."""
    given = arguments_of(node)
    (index,) = given["indices"]
    assert not given["accumulate"], node.format_node()
    places = emit.add("Unsqueeze", emit.value(index), emit.builder.integers(-1))
    emit.finish(node, "ScatterND", emit.value(given["self"]), places, emit.value(given["values"]))


@converts(aten.gather.default)
def gather(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    emit.finish(
        node, "GatherElements", emit.value(given["self"]), emit.value(given["index"]), axis=given["dim"]
    )


@converts(aten.arange.start_step)
def arange(emit: Emitter, node: fx.Node) -> None:
    given = arguments_of(node)
    dtype = tensor_of(node).dtype
    limits = (emit.builder.scalar(given[name], dtype) for name in ("start", "end", "step"))
    emit.finish(node, "Range", *limits)


@converts(aten.scalar_tensor.default)
def scalar_tensor(emit: Emitter, node: fx.Node) -> None:
    emit.bind(node, emit.builder.scalar(arguments_of(node)["s"], tensor_of(node).dtype))


@converts(aten.full.default, aten.full_like.default)
def full(emit: Emitter, node: fx.Node) -> None:
    value, like = arguments_of(node)["fill_value"], tensor_of(node)
    if prod(like.shape) <= _WRITTEN_OUT and like.dtype != torch.bfloat16:
        filled = np.full(like.shape, value, dtype=str(like.dtype).removeprefix("torch."))
        emit.bind(node, emit.builder.constant(filled))
        return
    filling = onnx.helper.make_tensor("value", ELEMENT_TYPES[like.dtype], [1], [value])
    emit.finish(node, "ConstantOfShape", emit.builder.integers(*like.shape), value=filling)
