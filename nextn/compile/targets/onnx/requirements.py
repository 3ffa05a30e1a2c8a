"""What lowering to ONNX needs of the environment."""

from __future__ import annotations

from importlib import metadata

from nextn.runtime.contract.errors import ExecutionError


def onnx_version() -> str:
    """The installed onnx, without importing it. Raises ExecutionError if there is none."""
    try:
        return metadata.version("onnx")
    except metadata.PackageNotFoundError:
        raise ExecutionError(
            "graphs as ONNX need the package onnx; pip install 'nextn[onnx]'", expected="onnx", found="none"
        ) from None
