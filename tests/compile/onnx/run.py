"""Graphs as ONNX models, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from nextn.compile.targets.functional import FunctionalGraph
from nextn.compile.targets.onnx.onnx_program import OnnxLayout, to_onnx
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.graph_spec import GraphSpec, TensorSpec
from nextn.weights.config_json import parse_model_config
from tests.oracles.synthetic import CASES


def functional_of(
    function: Callable[..., Tensor], *examples: Tensor, decomposed: bool = False
) -> FunctionalGraph:
    """A graph that writes what `function` gives to the rows of a state buffer `out`; inputs are `in_0`, ...

    It calls what `function` calls, or with `decomposed` core aten operators, as a graph of the product does.
    """
    result = function(*examples)
    rows = result.reshape(result.shape[0] if result.dim() else 1, -1)

    def writes(out: Tensor, *inputs: Tensor) -> tuple[Tensor]:
        index = torch.ops.aten.arange.start_step(0, rows.shape[0], 1)
        whole = torch.ops.aten.clone.default(function(*inputs), memory_format=torch.contiguous_format)
        value = torch.ops.aten.view.default(whole, list(rows.shape))
        return (torch.ops.aten.index_put.default(out, [index], value),)

    table = torch.export.default_decompositions() if decomposed else {}
    traced = make_fx(writes, dict(table.items()), tracing_mode="fake")(torch.zeros_like(rows), *examples)
    graph: fx.Graph = traced.graph
    specs = [TensorSpec("out", "state", _dtype(rows), tuple(rows.shape))]
    specs += [
        TensorSpec(f"in_{index}", "input", _dtype(one), tuple(one.shape))
        for index, one in enumerate(examples)
    ]
    return FunctionalGraph(graph, tuple(specs), ("out",))


def model_of(functional: FunctionalGraph, opset: int = 18) -> onnx.ModelProto:
    config, _ = parse_model_config(CASES["tiny"].config, "config.json")
    spec = GraphSpec("accept", 1, 1, functional.tensors)
    model = to_onnx(functional, spec, SessionShape(config), OnnxLayout(opset, {}))
    onnx.checker.check_model(model, full_check=True)
    return model


def computed(
    function: Callable[..., Tensor], *inputs: Tensor, opset: int = 18, decomposed: bool = False
) -> Tensor:
    """What ONNX Runtime gives for `function(*inputs)`, in the shape of a state buffer `[rows, width]`."""
    model = model_of(functional_of(function, *inputs, decomposed=decomposed), opset)
    session = open_model(model)
    (out,) = (one for one in session.get_inputs() if one.name == "past.out")
    kinds: dict[str, torch.dtype] = {"tensor(float)": torch.float32, "tensor(int64)": torch.int64}
    feed = {"past.out": torch.zeros(out.shape, dtype=kinds.get(out.type, torch.bool)).numpy()}
    feed |= {f"in_{index}": one.numpy() for index, one in enumerate(inputs)}
    (found,) = session.run(["present.out"], feed)
    return torch.from_numpy(found)


def single_thread() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


def open_model(model: onnx.ModelProto) -> Any:
    """Of a model without external weights."""
    return onnxruntime.InferenceSession(model.SerializeToString(), single_thread())


def open_file(file: Path, options: Any = None) -> Any:
    return onnxruntime.InferenceSession(str(file), options or single_thread())


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def operators(model: onnx.ModelProto) -> Sequence[str]:
    return [node.op_type for node in model.graph.node]
