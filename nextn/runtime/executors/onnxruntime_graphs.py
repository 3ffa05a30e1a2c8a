"""Runs the graphs of an ONNX artifact with ONNX Runtime on one thread of the CPU: a reference, not a race."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.executors.past_and_present import BoundGraph, Buffer, check_interface

if TYPE_CHECKING:
    from nextn.runtime.bindings.model import Model

NAME = "onnxruntime"

Value = TypeVar("Value")

_FATAL = 4
"""The severity from which ONNX Runtime writes to standard error; what it reports otherwise is raised."""


def make(model: Model) -> OnnxRuntimeGraphs:
    """Raises ExecutionError if ONNX Runtime is not installed, or does not load."""
    try:
        import onnxruntime
    except (ImportError, OSError) as error:
        raise ExecutionError(
            "the artifact's graphs run with ONNX Runtime; pip install 'nextn[onnx]'",
            expected=NAME,
            found=error,
        ) from error
    return OnnxRuntimeGraphs(model, onnxruntime)


class OnnxRuntimeGraphs:
    """One ONNX Runtime session per graph that is launched, all on the memory of one session of ours."""

    def __init__(self, model: Model, onnxruntime: Any) -> None:
        self._files = {record.spec.key: model.directory / record.file for record in model.manifest.graphs}
        self._specs = {record.spec.key: record.spec for record in model.manifest.graphs}
        self._onnxruntime = onnxruntime
        self._buffers: dict[str, Buffer] = {}
        self._graphs: dict[str, BoundGraph] = {}

    def attach(self, memory: Mapping[str, memoryview]) -> None:
        # Weights it maps itself, from the file that its graphs name.
        self._buffers = {name: Buffer(view) for name, view in memory.items() if not view.readonly}

    def load(self, graph: str) -> None:
        session = self._reported(graph, lambda: self._open(graph))
        check_interface(session, self._specs[graph], self._files[graph])
        self._graphs[graph] = BoundGraph(session, self._specs[graph], self._buffers)

    def write(self, name: str, start: int, stop: int) -> None:
        self._buffers[name].host_wrote(start, stop)

    def launch(self, graph: str) -> None:
        self._reported(graph, self._graphs[graph].launch)

    def wait(self) -> None:
        """A launch returns when it has run."""

    def read(self, name: str) -> None:
        self._buffers[name].bring_home()

    def close(self) -> None:
        self._graphs.clear()
        self._buffers.clear()

    def _open(self, graph: str) -> Any:
        options = self._onnxruntime.SessionOptions()
        # One thread, as libnextn's own graphs have: a round is thousands of small operators.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        # It would copy every matrix into a layout of its own, once for each graph: 67 MB of anonymous memory
        # for 67 MB of weights, where 0.2 MB are taken by what is mapped.
        options.add_session_config_entry("session.disable_prepacking", "1")
        providers = ["CPUExecutionProvider"]
        return self._onnxruntime.InferenceSession(str(self._files[graph]), options, providers=providers)

    def _reported(self, graph: str, call: Callable[[], Value]) -> Value:
        """What ONNX Runtime raises has no base class of its own, and several lines."""
        try:
            return call()
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "onnxruntime":
                raise
            reason = str(error).strip().splitlines()[0]
            raise ExecutionError(f"ONNX Runtime: {reason}", file=self._files[graph]) from error
