"""Graph modules to exported programs, and the proof that a program keeps its `GraphSpec`."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from nextn.graphs.model import Model, derived_constants
from nextn.graphs.phases import build_graph, graph_rows
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State, input_table, state_table
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.graph_spec import GraphSpec, TensorSpec
from nextn.weights.packed import packed_weights, scales_name

_MAP_NORESERVE = 0x4000
"""Linux's flag; Python names it from 3.13 on. Without it a mapping beyond its memory may be refused."""

_KINDS = {"model": "weight", "state": "state or input"}


def unwritten_model(shape: SessionShape) -> tuple[Model, State]:
    """Weights and state of zeros that take no memory until they are written.

    A compiler needs real tensors, which fake ones are not. `torch.zeros` writes its zeros, which would put
    a whole model into every worker's memory; a page of an anonymous mapping exists once it is touched.
    """
    with torch.device("meta"):
        model, state = Model(shape), State(shape)
    for root in (model, state):
        for name, buffer in list(root.named_buffers()):
            owner, _, leaf = name.rpartition(".")
            setattr(root.get_submodule(owner), leaf, _unwritten_zeros(buffer))
    return model, state


def _unwritten_zeros(like: Tensor) -> Tensor:
    count = prod(like.shape)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    pages = mmap.mmap(-1, count * like.dtype.itemsize, flags=flags)
    return torch.frombuffer(pages, dtype=like.dtype, count=count).view(like.shape)


@dataclass(frozen=True)
class TracedGraph:
    """A graph's contract and the exported program that fulfils it."""

    spec: GraphSpec
    program: ExportedProgram


def trace(name: str, batch: int, model: Model, state: State, shape: SessionShape) -> TracedGraph:
    """Exports one graph with static shapes.

    Raises ExecutionError if the program has arguments or results, a size that depends on data, or a
    tensor that is not in the weight, state and input tables exactly as declared.
    """
    module = build_graph(name, batch, model, state, shape)
    with torch.no_grad():
        program = torch.export.export(module, (), strict=False)
    key = f"{name}.b{batch}"
    _check_closed(key, program)
    _check_static(key, program)
    tensors = _bound_tensors(key, program, declared_tensors(shape))
    return TracedGraph(GraphSpec(name, batch, graph_rows(name, shape), tensors), program)


def declared_tensors(shape: SessionShape) -> dict[str, TensorSpec]:
    """Every tensor a graph of `shape` may bind, by manifest name."""
    state = [TensorSpec(s.name, "state", s.dtype, s.shape(shape.slots)) for s in state_table(shape)]
    tensors = [*declared_weights(shape), *state, *input_table(shape)]
    table = {tensor.name: tensor for tensor in tensors}
    assert len(table) == len(tensors), "a name serves two tensors"
    return table


def declared_weights(shape: SessionShape) -> Iterator[TensorSpec]:
    """The packed weights, with the scales of those that are int8 rows, and derived constants."""
    layouts = dict(shape.stored_layouts)
    for weight in packed_weights(shape.config, shape.num_steps > 0):
        if layouts.get(weight.name) == "int8_row":
            yield TensorSpec(weight.name, "weight", "int8", weight.shape)
            yield TensorSpec(scales_name(weight.name), "weight", "float32", (*weight.shape[:-1], 1))
        else:
            stored = weight.stored_dtype(getattr(torch, shape.dtype))
            yield TensorSpec(weight.name, "weight", _dtype_name(stored), weight.shape)
    for name, value in derived_constants(shape.config).items():
        yield TensorSpec(name, "weight", _dtype_name(value.dtype), tuple(value.shape))


def _check_closed(key: str, program: ExportedProgram) -> None:
    signature = program.graph_signature
    for label, names in (("arguments", signature.user_inputs), ("results", signature.user_outputs)):
        if names:
            raise ExecutionError(
                f"graph {key} has {label}", expected="none", found=", ".join(map(str, names))
            )


def _check_static(key: str, program: ExportedProgram) -> None:
    for node in program.graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else [values]:
            if isinstance(value, torch.SymInt) or (
                isinstance(value, torch.Tensor)
                and any(isinstance(size, torch.SymInt) for size in value.shape)
            ):
                raise ExecutionError(
                    f"graph {key} has a size that depends on data", key=node.name, found=value
                )


def _bound_tensors(
    key: str, program: ExportedProgram, declared: Mapping[str, TensorSpec]
) -> tuple[TensorSpec, ...]:
    """The specs of the tensors the program really uses, in its own order."""
    used = {node.name: node for node in program.graph.nodes if node.op == "placeholder" and node.users}
    tensors = []
    for argument in program.graph_signature.input_specs:
        if argument.arg.name not in used:
            continue
        if argument.kind not in (InputKind.BUFFER, InputKind.PARAMETER) or argument.target is None:
            raise ExecutionError(
                f"graph {key} holds a literal tensor", found=argument.target or argument.arg.name
            )
        owner, _, name = argument.target.partition(".")
        value = used[argument.arg.name].meta["val"]
        spec = declared.get(name)
        if spec is None or owner != ("model" if spec.kind == "weight" else "state"):
            raise ExecutionError(
                f"graph {key} binds an undeclared tensor", expected=_KINDS.get(owner), found=argument.target
            )
        found = (_dtype_name(value.dtype), tuple(value.shape))
        if found != (spec.dtype, spec.shape):
            raise ExecutionError(
                f"graph {key} binds a tensor of another shape or dtype",
                key=argument.target,
                expected=(spec.dtype, spec.shape),
                found=found,
            )
        tensors.append(spec)
    return tuple(tensors)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
