"""One traced graph to one `.air` file, which CANN's `atc` takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nextn.compile.build.trace import TracedGraph
from nextn.compile.targets.air.ge_program import GeProgram, to_ge
from nextn.runtime.contract.errors import ExecutionError


def write_air(traced: TracedGraph, slots: str, output: Path, custom_ops: Sequence[str] = ()) -> GeProgram:
    """Converts a graph and lets the graph engine write it; inputs are the graph's tensors in their order.

    Returns what was written. For `custom_ops` see `to_ge`.

    Raises ExecutionError if an operator has no GE form or the engine writes nothing.
    """
    program = to_ge(traced, slots, custom_ops)
    from torchair.core import _torchair

    folder = output.parent / f"{output.stem}.export"
    folder.mkdir()
    name = f"{output.stem}.air"
    _torchair.export(program.model.SerializeToString(), {"export_path_dir": str(folder), "export_name": name})
    written = folder / name
    if not written.is_file():
        raise ExecutionError("the graph engine wrote no file", expected=name, found=os.listdir(folder))
    os.replace(written, output)
    return program
