"""An ONNX graph under construction: `GraphBuilder` names nodes so that a person can read them, and `Emitter`
is what the converter of an aten operator sees: operands as ONNX values, a place to add nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from torch import Tensor, fx

from nextn.runtime.contract.graph_spec import TensorSpec

aten: Any = torch.ops.aten

ELEMENT_TYPES: Mapping[torch.dtype, int] = {
    torch.float32: TensorProto.FLOAT,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.bool: TensorProto.BOOL,
}

_NAMED_VALUES = 8
"""A constant of at most this many values is named after them."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a weight's bytes lie: `offset` and `nbytes` in `file`, a name relative to the graph's folder."""

    file: str
    offset: int
    nbytes: int


class GraphBuilder:
    """Nodes in the order they are added, which is a topological one; constants and weights once each.

    A node's name is its scope, its operator and a number; its only output has the same name.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.values: list[onnx.ValueInfoProto] = []
        self.scope = ""
        self.doc = ""
        self._numbers: Counter[str] = Counter()

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        *,
        outputs: Sequence[str] | int = 1,
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Adds a node under the current scope; returns the names of its outputs.

        Args:
            outputs: their names, or how many there are.
        """
        place = f"{self.scope}/{operator}" if self.scope else operator
        name = f"{place}_{self._numbers[place]}"
        self._numbers[place] += 1
        if isinstance(outputs, int):
            outputs = [name] if outputs == 1 else [f"{name}.{index}" for index in range(outputs)]
        self.nodes.append(
            helper.make_node(operator, inputs, outputs, name=name, doc_string=self.doc, **attributes)
        )
        return tuple(outputs)

    def constant(self, values: NDArray[np.generic]) -> str:
        """The name of an initializer with these values."""
        text = "_".join(map(str, values.ravel()))
        if values.size > _NAMED_VALUES:
            text = f"constant_{len(self.initializers)}"
        layout = ("", "s")[values.ndim] if values.ndim < 2 else "x".join(map(str, values.shape))
        name = f"{values.dtype}{layout}.{text}"
        if name not in self.initializers:
            self.initializers[name] = onnx.numpy_helper.from_array(values, name)
        return name

    def integers(self, *values: int) -> str:
        """A constant int64 vector."""
        return self.constant(np.array(values, dtype=np.int64))

    def scalar(self, value: float | bool, dtype: torch.dtype) -> str:
        """A constant of rank 0."""
        if dtype != torch.bfloat16:
            return self.constant(np.array(value, dtype=str(dtype).removeprefix("torch.")))
        name = f"bfloat16.{value}"
        self.initializers[name] = helper.make_tensor(name, TensorProto.BFLOAT16, (), [value])
        return name

    def weight(self, name: str, dtype: torch.dtype, shape: Sequence[int], stored: StoredTensor) -> str:
        """An initializer whose bytes lie in a file beside the graph; several may share bytes."""
        if name not in self.initializers:
            tensor = TensorProto(name=name, data_type=ELEMENT_TYPES[dtype], dims=shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", stored.file),
                ("offset", str(stored.offset)),
                ("length", str(stored.nbytes)),
            ):
                tensor.external_data.add(key=key, value=value)
            self.initializers[name] = tensor
        return name

    def graph(self, name: str, doc: str) -> onnx.GraphProto:
        """The finished graph, of what its outputs need."""
        needed = {output.name for output in self.outputs}
        nodes = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.append(node)
        return helper.make_graph(
            nodes[::-1],
            name,
            self.inputs,
            self.outputs,
            [tensor for tensor in self.initializers.values() if tensor.name in needed],
            doc_string=doc,
            value_info=[info for info in self.values if info.name in needed],
        )


class Emitter:
    """Walks an aten graph; `results` gives the names that the values of some nodes must have."""

    def __init__(
        self,
        builder: GraphBuilder,
        weights: Mapping[fx.Node, tuple[TensorSpec, StoredTensor]],
        results: Mapping[fx.Node, str],
    ) -> None:
        self.builder = builder
        self._weights = dict(weights)
        self._results = results
        self._values: dict[fx.Node, tuple[str, ...]] = {}
        # Inputs and outputs are declared as such.
        self._declared = {info.name for info in (*builder.inputs, *builder.outputs)}

    def bind(self, node: fx.Node, *names: str) -> None:
        """From here on `node` is these values: one, or the members of a list."""
        self._values[node] = names

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node of one output; the output."""
        (output,) = self.builder.node(operator, inputs, **attributes)
        return output

    def finish(self, node: fx.Node, operator: str, *inputs: str, **attributes: Any) -> None:
        """Adds the node that computes `node`, under the name that its value must have if there is one."""
        named = self._results.get(node)
        outputs = 1 if named is None else [named]
        self.bind(node, *self.builder.node(operator, inputs, outputs=outputs, **attributes))

    def value(self, operand: Any, dtype: torch.dtype | None = None) -> str:
        """The ONNX value of an operand, a node or a number, converted to `dtype` if that is another."""
        if not isinstance(operand, fx.Node):
            assert dtype is not None
            return self.builder.scalar(operand, dtype)
        if operand in self._weights:
            name = self._weight(operand)
        else:
            (name,) = self._values[operand]
        if dtype in (None, tensor_of(operand).dtype):
            return name
        return self.add("Cast", name, to=ELEMENT_TYPES[dtype])

    def declare(self, node: fx.Node) -> None:
        """Writes down the dtype and shape that `node` must have: checkers compare, and viewers show it."""
        (name,) = self._values[node]
        if name not in self._declared and name not in self.builder.initializers:
            self._declared.add(name)
            self.builder.values.append(tensor_info(name, tensor_of(node)))

    def members(self, operand: fx.Node) -> tuple[str, ...]:
        """The values of a node that is a list."""
        return self._values[operand]

    def is_weight(self, operand: Any) -> bool:
        """Whether a node is a weight as it lies in its file."""
        return operand in self._weights

    def reshape_weight(self, node: fx.Node, source: fx.Node, shape: Sequence[int]) -> None:
        """`node` is a weight in another shape: a second view of the same bytes, which nothing has to copy."""
        spec, stored = self._weights[source]
        name = f"{spec.name}.as_{'x'.join(map(str, shape))}"
        self._weights[node] = (TensorSpec(name, "weight", spec.dtype, tuple(shape)), stored)

    def _weight(self, node: fx.Node) -> str:
        spec, stored = self._weights[node]
        return self.builder.weight(spec.name, getattr(torch, spec.dtype), spec.shape, stored)


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """All arguments of an aten call by name, those left to their defaults included."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((argument.name for argument in schema), node.args, strict=False)) | node.kwargs
    return {argument.name: given.get(argument.name, argument.default_value) for argument in schema}


def tensor_of(node: fx.Node) -> Tensor:
    """The fake tensor with a node's dtype and shape."""
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


Converter = Callable[[Emitter, fx.Node], None]
"""Adds the nodes that compute an fx node and binds it to what they give."""

CONVERTERS: dict[Any, Converter] = {}


def converts(*targets: Any) -> Callable[[Converter], Converter]:
    """Registers a converter of these operators."""

    def register(converter: Converter) -> Converter:
        for target in targets:
            assert target not in CONVERTERS, target
            CONVERTERS[target] = converter
        return converter

    return register


def tensor_info(name: str, value: torch.Tensor, doc: str = "") -> onnx.ValueInfoProto:
    """Name, element type and shape of a value."""
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[value.dtype], tuple(value.shape), doc)
