"""`GraphBuilder`: an ONNX graph under construction, with names that a person can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

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
        form = ("", "s")[values.ndim] if values.ndim < 2 else "x".join(map(str, values.shape))
        name = f"{values.dtype}{form}.{text}"
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


def tensor_info(name: str, value: torch.Tensor, doc: str = "") -> onnx.ValueInfoProto:
    """Name, element type and shape of a value."""
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[value.dtype], tuple(value.shape), doc)
