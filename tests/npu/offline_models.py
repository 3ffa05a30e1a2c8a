"""Offline models for the fake: files that say a graph's interface, and what computes them in the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from nextn.graphs.model import Model as EagerModel
from nextn.graphs.phases import build_graph, slots_input
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.runtime.contract.blocks import Control, Result
from nextn.runtime.contract.graph_spec import GraphSpec, TensorSpec
from nextn.runtime.contract.manifest import Manifest, ReturnedBlock
from tests.integration.eager_executor import session_shape

PROTO_DTYPES = {"float32": 1, "int8": 3, "uint8": 4, "int32": 7, "int64": 8, "bfloat16": 27}
"""Numbers of `ge.proto.DataType`."""

CALLS = [
    *("aclrtCreateContext", "aclrtMalloc", "aclrtMemcpy", "aclrtCreateStream", "aclrtMemset"),
    *("aclrtMallocHost", "aclmdlQuerySize", "aclmdlLoadFromFileWithMem", "aclmdlCreateDesc", "aclmdlGetDesc"),
    *("aclmdlCreateDataset", "aclCreateDataBuffer", "aclmdlAddDatasetBuffer", "aclrtSetCurrentContext"),
    *("aclrtMemcpyAsync", "aclmdlExecuteAsync", "aclrtSynchronizeStream"),
]
"""Every call that makes something, moves bytes or launches."""


LEAVE_RESULTS = ("seed", "draft_extend", "draft_step")
"""Graphs that draft, and emit nothing."""


def block_of(graph: GraphSpec) -> ReturnedBlock:
    """The block whose rows a graph returns."""
    return "control" if graph.name in LEAVE_RESULTS else "result"


def model_def(graph: GraphSpec) -> bytes:
    """A GE model of the graph's inputs and its output, with nothing between them."""
    from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef

    model = ModelDef()
    ops = model.graph.add().op
    for index, tensor in enumerate(graph.tensors):
        op = ops.add(name=tensor.name.replace(".", "_"), type="RefData" if tensor.kind == "state" else "Data")
        op.attr["index"].i = index
        output = op.output_desc.add(dtype=PROTO_DTYPES[tensor.dtype])
        output.shape.dim.extend(tensor.shape)
    width = Result.WIDTH if block_of(graph) == "result" else Control.WIDTH
    rows = ops.add(name="NetOutput", type="NetOutput").input_desc.add(dtype=PROTO_DTYPES["int64"])
    rows.shape.dim.extend([graph.batch, width])
    return bytes(model.SerializeToString())


@dataclass
class _Bound:
    module: nn.Module
    state: State


@dataclass
class EagerModels:
    """Runs models as eager modules over nothing but the memory they are given, weights included."""

    manifest: Manifest
    ran: list[str] = field(default_factory=list)
    _bound: dict[tuple[object, ...], _Bound] = field(default_factory=dict)

    @property
    def shape(self) -> SessionShape:
        return session_shape(self.manifest)

    def run(self, path: str, inputs: list[memoryview], outputs: list[memoryview]) -> None:
        key = Path(path).name.removesuffix(".om")
        self.ran.append(key)
        graph = next(one.spec for one in self.manifest.graphs if one.spec.key == key)
        tensors = [_tensor(view, one) for view, one in zip(inputs, graph.tensors, strict=True)]
        place = (key, *(tensor.data_ptr() for tensor in tensors))
        if place not in self._bound:
            self._bound[place] = self._bind(graph, tensors)
        bound = self._bound[place]
        with torch.no_grad():
            bound.module()
        slots = bound.state.get_buffer(slots_input(graph.name, graph.batch))
        rows = bound.state.get_buffer(block_of(graph))[slots]
        [output] = outputs
        output[: rows.nbytes] = rows.numpy().tobytes()

    def _bind(self, graph: GraphSpec, tensors: list[Tensor]) -> _Bound:
        model, state = EagerModel(self.shape), State(self.shape)
        for one, tensor in zip(graph.tensors, tensors, strict=True):
            owner, _, name = one.name.rpartition(".")
            root: nn.Module = model if one.kind == "weight" else state
            assert root.get_buffer(one.name).shape == tensor.shape, one.name
            setattr(root.get_submodule(owner), name, tensor)
        return _Bound(build_graph(graph.name, graph.batch, model, state, self.shape), state)


def _tensor(view: memoryview, spec: TensorSpec) -> Tensor:
    """On the memory itself, which may be larger."""
    flat = torch.frombuffer(view, dtype=getattr(torch, spec.dtype))
    return flat[: torch.Size(spec.shape).numel()].view(spec.shape)
