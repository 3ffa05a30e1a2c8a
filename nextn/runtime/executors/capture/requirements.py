"""What a device needs before a graph can run on it; each absence is one sentence."""

from __future__ import annotations

import importlib
from importlib import metadata, util

from nextn.runtime.contract.errors import ArtifactError, ExecutionError
from nextn.runtime.tool.torch_backends import load_no_backends

GRAPH_TYPES = {"cuda": "CUDAGraph", "npu": "NPUGraph"}
"""Devices whose graphs are captured, and the class of torch's module of that device that holds one."""

_ABSENT_DEVICE = {
    "cuda": "a CUDA build of torch, a driver and a GPU",
    "npu": "an Ascend NPU, its driver and firmware",
}


def import_torch_for(device: str) -> None:
    """Imports torch, and torch_npu for `npu`, and looks for the device.

    Raises ExecutionError for a package that is absent or does not load, ArtifactError for an absent device.
    """
    for package in ["torch", *(["torch_npu"] if device == "npu" else [])]:
        if not _is_installed(package):
            raise ExecutionError(
                f"graphs for {device} need {package}", expected=package, found="not installed"
            )
    load_no_backends()
    try:
        torch = importlib.import_module("torch")
        if device == "npu":
            importlib.import_module("torch_npu")
    except (ImportError, RuntimeError, OSError) as error:
        raise ExecutionError(
            "torch does not load" + ("; source CANN's set_env.sh" if device == "npu" else ""),
            found=str(error).strip().splitlines()[-1],
        ) from error
    if device in GRAPH_TYPES and not torch.get_device_module(device).is_available():
        raise ArtifactError(
            f"no {device} device here",
            expected=_ABSENT_DEVICE[device],
            found=f"torch {metadata.version('torch')} that sees none",
        )


def _is_installed(package: str) -> bool:
    return util.find_spec(package) is not None
