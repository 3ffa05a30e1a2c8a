"""`Emitter`: what the converter of an aten operator sees: operands as ONNX values, a place to add nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from nextn.compile.targets.onnx.graph_builder import ELEMENT_TYPES, GraphBuilder, StoredTensor, tensor_info
from nextn.runtime.contract.graph_spec import TensorSpec


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
