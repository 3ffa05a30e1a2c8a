"""The executor of exported programs (`pt2`): graphs captured in this process, replayed by one call each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextn.runtime.bindings.executor import Executor
from nextn.runtime.contract.errors import ArtifactError

if TYPE_CHECKING:
    from nextn.runtime.bindings.model import Model


def make(model: Model) -> Executor:
    """An executor for one session on the model's device; sessions of one model share weights and programs.

    Raises ExecutionError if torch, or what it needs for the device, does not load, and ArtifactError if this
    machine has no such device, or the graphs call operators that only another has.
    """
    from nextn.runtime.executors.capture.requirements import import_torch_for

    if model.device != "npu" and "torch_npu" in model.manifest.requires:
        raise ArtifactError("graphs call fused operators of an NPU", expected="npu", found=model.device)
    import_torch_for(model.device)
    from nextn.runtime.executors.capture.session_graphs import SessionGraphs

    return SessionGraphs(model)
