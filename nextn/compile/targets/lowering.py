"""`Lowering`: what a device and a file form make of graphs; chosen by `--device` and `--emit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from nextn.compile.targets.aoti.kernels import CPU_KERNELS
from nextn.runtime.contract.manifest import Device, Emit

GRAPHS_FOLDER = "graphs"
WEIGHTS_FILE = "weights.safetensors"

DEFAULT_OPSET = 18
"""The newest that the ONNX plugins of Ascend's ATC register."""

NEWEST_OPSET = 26
"""The newest that graphs were checked and run with."""

_PLAIN_OPS = ("linear", "expert_mlp", "write_rows", "window_attention", "reduce_sum", "gather_argmax")


@dataclass(frozen=True)
class Lowering:
    """`ops` is the form of each op of the op layer, as the manifest records it; `dtype` is the default.

    `weights_file` is where an artifact keeps its weights; `opset` is for ONNX alone.
    The ops in `chosen_ops` take a form in each graph, by its shapes.
    """

    device: Device
    emit: Emit
    suffix: str
    dtype: str
    ops: Mapping[str, str]
    weights_file: str = WEIGHTS_FILE
    opset: int | None = None
    chosen_ops: tuple[str, ...] = ()

    def graph_file(self, key: str) -> str:
        """A graph's file inside an artifact."""
        return f"{GRAPHS_FOLDER}/{key}{self.suffix}"


def _short(operator: object) -> str:
    return str(operator).split(".")[1].removeprefix("nextn_")


_ALL_PLAIN = dict.fromkeys((*_PLAIN_OPS, *map(_short, CPU_KERNELS)), "plain")

CPU = Lowering(
    device="cpu",
    emit="aoti",
    suffix=".so",
    dtype="float32",
    ops=MappingProxyType(
        dict.fromkeys(_PLAIN_OPS, "plain") | {_short(operator): "native" for operator in CPU_KERNELS}
    ),
)
"""AOTInductor shared objects; native ops are kernels of libnextn_ops."""

NPU_CHOSEN_OPS = (
    *("linear", "expert_mlp", "sinkhorn", "unit_rms", "rms_norm", "apply_rope", "score_route"),
    *("hash_route", "clamped_swiglu", "hyper_pre", "hyper_post"),
)
"""Ops of which Ascend has fused forms."""

NPU_AIR = Lowering(
    device="npu",
    emit="air",
    suffix=".air",
    dtype="bfloat16",
    ops=MappingProxyType(_ALL_PLAIN | {"write_rows": "scatter_nd_update"}),
    chosen_ops=NPU_CHOSEN_OPS,
)
"""GE IR for CANN's offline compiler: `atc` turns each file into an `.om`."""

ONNX = Lowering(
    device="cpu",
    emit="onnx",
    suffix=".onnx",
    dtype="float32",
    ops=MappingProxyType(_ALL_PLAIN | {"write_rows": "scatter_nd"}),
    # An ONNX graph may not name a file outside its own folder, be it through a link.
    weights_file=f"{GRAPHS_FOLDER}/{WEIGHTS_FILE}",
    opset=DEFAULT_OPSET,
)
"""Standard ONNX operators; state goes in as `past.NAME` and comes out as `present.NAME`."""

CUDA, NPU = (
    Lowering(device=device, emit="pt2", suffix=".pt2", dtype="bfloat16", ops=MappingProxyType(_ALL_PLAIN))
    for device in ("cuda", "npu")
)
"""Exported programs, which a process captures as graphs of the device when it loads them."""

NPU_FUSED = replace(NPU, chosen_ops=NPU_CHOSEN_OPS)
"""The same with torch_npu's fused operators, which only an NPU has."""

DEFAULT_EMIT: Mapping[Device, Emit] = MappingProxyType({"cpu": "aoti", "cuda": "pt2", "npu": "pt2"})

LOWERINGS: Mapping[tuple[str, str], Lowering] = MappingProxyType(
    {(lowering.device, lowering.emit): lowering for lowering in (CPU, ONNX, CUDA, NPU, NPU_AIR)}
)
