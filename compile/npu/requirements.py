"""What lowering to Ascend needs of the environment."""

from __future__ import annotations

from importlib import metadata

from nextn.runtime.contract.errors import ExecutionError

TORCH_NPU = "2.13.0"
"""The version whose converters, and their internals, `ge_program` was written for."""


def torch_npu_version() -> str:
    """The installed torch_npu, without importing it. Raises ExecutionError if there is none, or another."""
    try:
        found = metadata.version("torch_npu").partition("+")[0]
    except metadata.PackageNotFoundError:
        found = "none"
    if found != TORCH_NPU:
        raise ExecutionError(
            "graphs for npu need torch_npu, in an environment with CANN", expected=TORCH_NPU, found=found
        )
    return found


def import_torch_npu() -> None:
    """Raises ExecutionError with the reason if torch_npu or a library of CANN does not load."""
    torch_npu_version()
    try:
        import torch_npu  # noqa: F401
    except (ImportError, RuntimeError) as error:
        raise ExecutionError(
            "torch_npu does not load; source CANN's set_env.sh", found=str(error).splitlines()[0]
        ) from error
