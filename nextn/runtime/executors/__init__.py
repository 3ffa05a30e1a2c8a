"""Executors by the form of an artifact's graphs.

The modules here alone may import torch or ONNX Runtime, and only when one of their executors is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nextn.runtime.bindings.executor import Executor
from nextn.runtime.contract.errors import UsageError

if TYPE_CHECKING:
    from nextn.runtime.bindings.model import Model

NATIVE = "native"
"""libnextn itself."""

_EXECUTORS: dict[str, tuple[str, str]] = {
    "onnx": ("onnxruntime", "nextn.runtime.executors.onnxruntime_graphs"),
    "pt2": ("capture", "nextn.runtime.executors.captured_graphs"),
}
"""By form of the graphs: the executor's name, and the module whose `make(model)` makes one.

The other forms are left to libnextn, which runs them or says why not.
"""


def names() -> tuple[str, ...]:
    """Every executor of this build."""
    return NATIVE, *(name for name, _ in _EXECUTORS.values())


def check(model: Model, name: str | None) -> None:
    """Raises UsageError if a caller insists on an executor that does not run the artifact's graphs."""
    own, _ = _EXECUTORS.get(model.manifest.target.emit, (NATIVE, ""))
    if name not in (None, own):
        raise UsageError("the executor does not run the artifact's graphs", expected=own, found=name)


def make(model: Model) -> Executor | None:
    """An executor for one session of `model`, None if libnextn runs its graphs.

    Raises ExecutionError if what the executor needs is not installed.
    """
    found = _EXECUTORS.get(model.manifest.target.emit)
    if found is None:
        return None
    executor: Executor = importlib.import_module(found[1]).make(model)
    return executor
