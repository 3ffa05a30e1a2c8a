"""Functional graphs to GE IR through TorchAir's converters, with state written in place."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nextn.compile.build.functional import functionalize
from nextn.compile.build.trace import TracedGraph
from nextn.compile.targets.air.common_subexpressions import merge_equal_calls
from nextn.compile.targets.air.device_form import device_form
from nextn.compile.targets.air.in_place import order_in_place_writes
from nextn.compile.targets.air.returned_rows import returned_block
from nextn.compile.targets.air.tidy import tidy
from nextn.compile.targets.ascend.custom_ops import declare_custom_ops
from nextn.compile.targets.ascend.fused_ops.choice import ChosenForms, recorded
from nextn.compile.targets.ascend.requirements import import_torch_npu
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.graph_spec import TensorSpec
from nextn.runtime.contract.manifest import ReturnedBlock


@dataclass(frozen=True)
class GeProgram:
    """One graph in GE IR: `model` is a `ModelDef` whose inputs are `tensors`, by index.

    The tensors in `written` are changed in place; the only output is a block of rows, int64 `[B, F]`. `forms`
    says which form each of our operators took.
    """

    model: Any
    tensors: tuple[TensorSpec, ...]
    written: tuple[str, ...]
    forms: Mapping[str, str]

    @property
    def returns(self) -> ReturnedBlock:
        return returned_block(self.written)

    @property
    def graph(self) -> Any:
        return self.model.graph[0]


def to_ge(traced: TracedGraph, slots: str, custom_ops: Sequence[str] = ()) -> GeProgram:
    """Converts a traced graph; needs torch_npu and CANN's libraries, and runs nothing on a device.

    Args:
        slots: name of the input tensor that holds the graph's slots.
        custom_ops: operators beside torch_npu's own that `atc` will find, of `forms.chosen.CUSTOM_OPS`.

    Raises ExecutionError if torch_npu is absent or of another version, or an operator has no GE form.
    """
    import_torch_npu()
    declare_custom_ops()
    chosen = ChosenForms(custom_ops)
    functional = functionalize(traced, chosen.forms())
    merge_equal_calls(functional.graph)
    module = device_form(functional, slots)
    with FakeTensorMode():
        inputs = [
            torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="npu")
            for spec in functional.tensors
        ]
    graph = convert(traced.spec.key, module, inputs)
    tidy(graph)
    names = dict(enumerate(spec.name for spec in functional.tensors))
    order_in_place_writes(graph, names, functional.written)
    return GeProgram(graph._model, functional.tensors, functional.written, recorded(chosen.taken))


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
        raise ExecutionError(f"graph {key} has an operator without a GE form: {reason}") from error
    concrete.optimize_graph_without_runtime(*inputs, observer=observer, aot_gm=module)
    _normalize_ge_graph(concrete.graph)
    return concrete.graph
