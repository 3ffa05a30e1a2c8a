"""One traced graph to one `.air` file, which CANN's `atc` takes, through TorchAir's converters.

State is written in place and read as rows; everything lives on the device; and a graph engine keeps nothing
that leads to no output, so the rows of one small block are returned.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from nextn.compile.build.trace import TracedGraph
from nextn.compile.targets.air.in_place import order_in_place_writes
from nextn.compile.targets.air.om_interface import returned_block
from nextn.compile.targets.air.tidy import tidy
from nextn.compile.targets.ascend.custom_ops import declare_custom_ops
from nextn.compile.targets.ascend.fused_ops import offered
from nextn.compile.targets.ascend.requirements import import_torch_npu
from nextn.compile.targets.functional import ROWS_WRITE, FunctionalGraph, functionalize
from nextn.compile.targets.fused_op import FusedOpChoice
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.graph_spec import TensorSpec
from nextn.runtime.contract.manifest import ReturnedBlock


@dataclass(frozen=True)
class GeProgram:
    """One graph in GE IR: `model` is a `ModelDef` whose inputs are `tensors`, by index.

    The tensors in `written` are changed in place; the only output is a block of rows, int64 `[B, F]`.
    `fused_ops` says which fused ops each of our operators took.
    """

    model: Any
    tensors: tuple[TensorSpec, ...]
    written: tuple[str, ...]
    fused_ops: Mapping[str, str]

    @property
    def returns(self) -> ReturnedBlock:
        return returned_block(self.written)

    @property
    def graph(self) -> Any:
        return self.model.graph[0]


def write_air(traced: TracedGraph, slots: str, output: Path, custom_ops: Sequence[str] = ()) -> GeProgram:
    """Converts a graph and lets the graph engine write it; inputs are the graph's tensors in their order.

    Returns what was written. For `custom_ops` see `to_ge`.

    Raises ExecutionError if an operator has no converter to GE IR or the engine writes nothing.
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


def to_ge(traced: TracedGraph, slots: str, custom_ops: Sequence[str] = ()) -> GeProgram:
    """Converts a traced graph; needs torch_npu and CANN's libraries, and runs nothing on a device.

    Args:
        slots: name of the input tensor that holds the graph's slots.
        custom_ops: operators beside torch_npu's own that `atc` will find, of `CUSTOM_OPS`.

    Raises ExecutionError if torch_npu is absent or of another version, or an operator has no converter to
    GE IR.
    """
    import_torch_npu()
    declare_custom_ops()
    choice = FusedOpChoice(offered(custom_ops))
    functional = functionalize(traced, choice.functions())
    merge_equal_calls(functional.graph)
    module = on_device(functional, slots)
    with FakeTensorMode():
        inputs = [
            torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="npu")
            for spec in functional.tensors
        ]
    graph = convert(traced.spec.key, module, inputs)
    tidy(graph)
    names = dict(enumerate(spec.name for spec in functional.tensors))
    order_in_place_writes(graph, names, functional.written)
    return GeProgram(graph._model, functional.tensors, functional.written, choice.recorded())


def merge_equal_calls(graph: fx.Graph) -> None:
    """Changes a functional graph in place; its values stay the same."""
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        key = (node.target, _hashable(node.args), _hashable(node.kwargs))
        earlier = first.setdefault(key, node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def _hashable(value: Any) -> Any:
    """Tells apart what compares equal but is another argument: 0, 0.0 and False."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((name, _hashable(one)) for name, one in sorted(value.items()))
    return type(value), value


def on_device(functional: FunctionalGraph, slots: str) -> fx.GraphModule:
    """A module of the same arguments on device `npu` that writes state in place.

    It returns the rows of `slots` of its `returned_block`, int64 `[B, F]`, as they are
    after every write. Needs torch_npu, whose operators it names.

    Args:
        slots: name of the input tensor that holds the graph's slots.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in functional.graph.nodes:
        if node.op == "output":
            break
        if node.target is ROWS_WRITE:
            copies[node] = _write(graph, node, copies)
        elif node.target is torch.ops.aten.index.Tensor:
            copies[node] = _read(graph, node, copies)
        else:
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
            if "device" in copies[node].kwargs:
                copies[node].kwargs = {**copies[node].kwargs, "device": torch.device("npu")}
    results, arguments = functional.results(), functional.arguments()
    rows = graph.call_function(
        torch.ops.aten.index_select.default,
        (copies[results[returned_block(results)]], 0, copies[arguments[slots]]),
    )
    graph.output((rows,))
    graph.lint()
    return fx.GraphModule({}, graph)


def _write(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """`index_put` by rows as the scatter that changes its first argument."""
    arguments: Any = node.args
    buffer, (index,), rows = arguments[:3]
    places = graph.call_function(torch.ops.aten.unsqueeze.default, (copies[index], -1))
    return graph.call_function(
        torch.ops.npu.npu_scatter_nd_update_.default, (copies[buffer], places, copies[rows])
    )


def _read(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """Rows by index as a gather, which the vector cores have; general indexing they have not."""
    arguments: Any = node.args
    buffer, (index,) = arguments
    shape = index.meta["val"].shape
    flat = graph.call_function(torch.ops.aten.reshape.default, (copies[index], [-1]))
    rows = graph.call_function(torch.ops.aten.index_select.default, (copies[buffer], 0, flat))
    width = buffer.meta["val"].shape[1:]
    return graph.call_function(torch.ops.aten.reshape.default, (rows, [*shape, *width]))


class _Names(dict[str, None]):
    """The names TorchAir has given to operators. It searches a list of them for every new one."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names))

    def append(self, name: str) -> None:
        self[name] = None


def convert(key: str, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    """The steps of TorchAir's compiler from an aten graph to GE IR, without dynamo and without a session.

    Args:
        key: the graph's name, for messages.
        module: a graph of aten and npu operators; inputs: fake tensors on the device, one per placeholder.

    Raises ExecutionError if an operator has no converter, or one that only says so.
    """
    import torchair
    from torchair._ge_concrete_graph.fx2ge_converter import GeConcreteGraph, _normalize_ge_graph
    from torchair._utils.graph_transform_observer import GraphTransformObserver
    from torchair.npu_fx_compiler import _NpuGraphConverter, _optimize_fx

    config = torchair.CompilerConfig()
    observer = GraphTransformObserver(module, inputs, config)
    concrete = GeConcreteGraph(config, name=key.replace(".", "_"))
    concrete.graph.op_name_list = _Names(concrete.graph.op_name_list)
    try:
        module = _optimize_fx(module, config, observer)
        with warnings.catch_warnings():
            # Shapes of operators that GE cannot infer: ours are fixed, and written for every output.
            warnings.filterwarnings("ignore", "infer and generate sym shape failed")
            _NpuGraphConverter(module, graph=concrete, garbage_collect_values=False).run(*inputs)
    except (NotImplementedError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ExecutionError(f"graph {key} has an operator without a converter to GE IR: {reason}") from error
    concrete.optimize_graph_without_runtime(*inputs, observer=observer, aot_gm=module)
    _normalize_ge_graph(concrete.graph)
    return concrete.graph
