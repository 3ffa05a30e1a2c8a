"""`Program`: one `.pt2` file, loaded for a device, to be run over any tensors of its shapes."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._export.serde import serialize

from nextn.runtime.contract.errors import ArtifactError
from nextn.runtime.contract.graph_spec import TensorSpec
from nextn.runtime.contract.manifest import GraphRecord


class Program:
    """A graph's aten program, whose arguments are its tensors in the manifest's order."""

    def __init__(self, file: Path, graph: GraphRecord, device: str) -> None:
        """Raises ArtifactError if the file is no program of these tensors."""
        self._names = [tensor.name for tensor in graph.tensors]
        self._module = _loaded(file)
        _check_arguments(file, self._module, graph.tensors)
        _move(self._module, torch.device(device))

    def over(self, tensors: Mapping[str, Tensor]) -> Callable[[], object]:
        """The program bound to tensors by name; a call changes the state among them in place."""
        arguments = [tensors[name] for name in self._names]

        def run() -> object:
            with torch.no_grad():
                return self._module(*arguments)

        return run


def _loaded(file: Path) -> fx.GraphModule:
    try:
        with _type_hints_remembered():
            program = torch.export.load(file)
    except Exception as error:  # whatever a reader of another version stumbles over
        raise ArtifactError(
            "graph is no exported program that this torch reads", file=file, found=error
        ) from error
    module: fx.GraphModule = program.graph_module
    return module


@contextmanager
def _type_hints_remembered() -> Iterator[None]:
    """torch works out the fields of the same few classes anew for every value of a program.

    That is 65 000 times for 4000 nodes, and two thirds of the time of a load.
    """
    reader: Any = serialize
    known: dict[type, dict[str, Any]] = {}

    def remembered(of: type, **names: Any) -> dict[str, Any]:
        if of not in known:
            known[of] = typing.get_type_hints(of, **names)
        return known[of]

    reader.typing = types.SimpleNamespace(**{**vars(typing), "get_type_hints": remembered})
    try:
        yield
    finally:
        reader.typing = typing


def _check_arguments(file: Path, module: fx.GraphModule, tensors: Sequence[TensorSpec]) -> None:
    expected = [(spec.dtype, spec.shape) for spec in tensors]
    found = [_form(node.meta.get("val")) for node in module.graph.find_nodes(op="placeholder")]
    if found != expected:
        raise ArtifactError(
            "program takes other tensors than the manifest says", file=file, expected=expected, found=found
        )


def _form(value: Any) -> tuple[str, tuple[int, ...]] | None:
    if not isinstance(value, Tensor):
        return None
    return str(value.dtype).removeprefix("torch."), tuple(value.shape)


def _move(module: fx.GraphModule, device: torch.device) -> None:
    """What a program makes for itself, such as positions, it makes on the device."""
    for node in module.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}
    module.recompile()
