"""One traced graph to one checked `.onnx` file."""

from __future__ import annotations

from pathlib import Path

import onnx

from nextn.compile.build.functional import functionalize
from nextn.compile.build.trace import TracedGraph
from nextn.compile.targets.onnx.graph_builder import StoredTensor
from nextn.compile.targets.onnx.onnx_program import OnnxForm, to_onnx
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.errors import ExecutionError
from nextn.weights.pack import read_packed_header


def write_onnx(traced: TracedGraph, shape: SessionShape, opset: int, weights: Path, output: Path) -> None:
    """Converts a graph whose weights are the bytes of `weights`, a packed file that will lie beside it.

    Raises ExecutionError if an operator has no ONNX form, or the checker refuses what was written.
    """
    stored = {
        name: StoredTensor(weights.name, entry.offset, entry.nbytes)
        for name, entry in read_packed_header(weights).items()
    }
    model = to_onnx(functionalize(traced), traced.spec, shape, OnnxForm(opset, stored))
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
