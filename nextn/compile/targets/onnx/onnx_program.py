"""A functional graph as an ONNX model: `past.<state>` in, `present.<state>` out, weights in a file beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import helper
from torch import Tensor, fx

from nextn.compile.build.trace import TracedGraph
from nextn.compile.targets.functional import FunctionalGraph, functionalize
from nextn.compile.targets.onnx import arithmetic, layout  # noqa: F401  they fill the table
from nextn.compile.targets.onnx.descriptions import MODEL_DOC, graph_doc, properties, tensor_doc
from nextn.compile.targets.onnx.emitter import (
    CONVERTERS,
    Emitter,
    GraphBuilder,
    StoredTensor,
    tensor_info,
    tensor_of,
)
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.graph_spec import GraphSpec
from nextn.runtime.contract.onnx_names import past, present
from nextn.runtime.contract.version import VERSION
from nextn.weights.pack import read_packed_header


@dataclass(frozen=True)
class OnnxLayout:
    """What an ONNX file is written for: its operator set, and where the bytes of each weight lie."""

    opset: int
    weights: Mapping[str, StoredTensor]


def write_onnx(traced: TracedGraph, shape: SessionShape, opset: int, weights: Path, output: Path) -> None:
    """Converts a graph whose weights are the bytes of `weights`, a packed file that will lie beside it.

    Raises ExecutionError if an operator has no converter to ONNX, or the checker refuses what was written.
    """
    stored = {
        name: StoredTensor(weights.name, entry.offset, entry.nbytes)
        for name, entry in read_packed_header(weights).items()
    }
    model = to_onnx(functionalize(traced), traced.spec, shape, OnnxLayout(opset, stored))
    output.write_bytes(model.SerializeToString(deterministic=True))
    # The checker wants the weights beside the graph and looks at their size: a hole of that size will do.
    with open(output.with_name(weights.name), "ab") as stand_in:
        stand_in.truncate(weights.stat().st_size)
    check(output)


def check(file: Path) -> None:
    """Checks every node, and that inferred shapes and types are those written down.

    Raises ExecutionError with the first line of what the checker says.
    """
    try:
        onnx.checker.check_model(str(file), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ExecutionError(f"the ONNX checker refuses a graph: {reason}", file=file) from error


def to_onnx(
    functional: FunctionalGraph, spec: GraphSpec, shape: SessionShape, placed: OnnxLayout
) -> onnx.ModelProto:
    """The model of one graph, with static shapes and standard operators only; reads no weight.

    Args:
        functional: what is converted, the graph that `spec` is the contract of, as a function.

    Raises ExecutionError if an operator has no converter to ONNX.
    """
    builder = GraphBuilder()
    emit = _declare(builder, functional, placed)
    for node in functional.graph.nodes:
        if node.op == "call_function":
            _convert(spec.key, node, emit)
    imports = [helper.make_opsetid("", placed.opset)]
    model = helper.make_model(
        builder.graph(spec.key, graph_doc(spec)),
        opset_imports=imports,
        ir_version=helper.find_min_ir_version_for(imports),
        producer_name="nextn-compile",
        producer_version=VERSION,
        doc_string=MODEL_DOC,
    )
    helper.set_model_props(model, properties(spec, shape, functional))
    return model


def _declare(builder: GraphBuilder, functional: FunctionalGraph, placed: OnnxLayout) -> Emitter:
    """Inputs and outputs of the graph; what its placeholders are, and what its results are called."""
    arguments, weights = functional.arguments(), {}
    inputs = {}
    for spec in functional.tensors:
        node = arguments[spec.name]
        if spec.kind == "weight":
            weights[node] = (spec, placed.weights[spec.name])
            continue
        inputs[node] = past(spec.name) if spec.kind == "state" else spec.name
        builder.inputs.append(tensor_info(inputs[node], tensor_of(node), tensor_doc(spec)))
    results = {node: present(name) for name, node in functional.results().items()}
    docs = {spec.name: tensor_doc(spec) for spec in functional.tensors}
    for name, node in functional.results().items():
        builder.outputs.append(tensor_info(present(name), tensor_of(node), docs[name]))
    emit = Emitter(builder, weights, results)
    for node, name in inputs.items():
        emit.bind(node, name)
    return emit


def _convert(key: str, node: fx.Node, emit: Emitter) -> None:
    converter = CONVERTERS.get(node.target)
    if converter is None:
        raise ExecutionError(f"graph {key} has an operator without a converter to ONNX", key=str(node.target))
    # What a phase computes outside of every module bears the graph's name.
    emit.builder.scope, emit.builder.doc = _scope(node) or key.partition(".")[0], str(node.target)
    converter(emit, node)
    if isinstance(node.meta["val"], Tensor) and not emit.is_weight(node):
        emit.declare(node)


def _scope(node: fx.Node) -> str:
    """The module that a node comes from, and the operator of ours that it is a part of, if any."""
    modules: Any = list(node.meta.get("nn_module_stack", {}).values())
    parts = [str(modules[-1][0]).removeprefix("model.")] if modules else []
    _, _, operator = str(node.meta.get("torch_fn", "")).partition("OpOverload.nextn_")
    parts.append(operator.partition(".")[0])
    return "/".join(filter(None, parts))
