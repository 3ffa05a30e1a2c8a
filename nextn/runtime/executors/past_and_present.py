"""State between the launches of ONNX graphs, which read a past and write a present.

Where the compiler says that a graph may write a buffer in place, past and present are the session's own
memory, and ONNX Runtime writes nothing but the rows: 4 us for four rows of 256 MB, and 42 ms otherwise.
Elsewhere ONNX Runtime, which knows nothing of shared memory, might write rows before it has read what they
replace: a second place takes the present, and the two change sides. These are rings, a few rows of a request.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nextn.runtime.contract.errors import ArtifactError
from nextn.runtime.contract.graph_spec import GraphSpec, TensorSpec
from nextn.runtime.contract.onnx_names import IN_PLACE, WRITTEN, past, present

_ELEMENT_TYPES = {"float32": 1, "int64": 7, "bfloat16": 16}
"""`TensorProto.DataType` by the manifest's dtype."""

_TYPE_NAMES = {"float32": "tensor(float)", "int64": "tensor(int64)", "bfloat16": "tensor(bfloat16)"}
"""What ONNX Runtime calls them."""


class Buffer:
    """A state or input tensor: `places[0]` is the session's memory, `places[side]` has the value."""

    def __init__(self, memory: memoryview) -> None:
        self.places = [memory]
        self.side = 0

    def take_turns(self) -> None:
        """From here on there are two places."""
        if len(self.places) == 1:
            self.places.append(memoryview(bytearray(self.places[0].nbytes)))

    def host_wrote(self, start: int, stop: int) -> None:
        """The session's memory has new bytes there."""
        if self.side:
            self.places[1][start:stop] = self.places[0][start:stop]

    def bring_home(self) -> None:
        """Makes the session's memory current."""
        if self.side:
            self.places[0][:] = self.places[1]


def check_interface(session: Any, spec: GraphSpec, file: Path) -> None:
    """Raises ArtifactError unless a graph takes the manifest's tensors, and gives every one it writes.

    A present that is missing would be state silently lost.
    """
    tensors = {
        past(one.name) if one.kind == "state" else one.name: (_TYPE_NAMES[one.dtype], list(one.shape))
        for one in spec.tensors
        if one.kind != "weight"
    }
    written = session.get_modelmeta().custom_metadata_map.get(WRITTEN, "")
    outputs = {present(name): tensors.get(past(name)) for name in written.split(",")}
    for kind, expected, arguments in (
        ("inputs", tensors, session.get_inputs()),
        ("outputs", outputs, session.get_outputs()),
    ):
        found = {one.name: (one.type, one.shape) for one in arguments}
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                raise ArtifactError(
                    f"graph {spec.key} has other {kind} than the manifest says",
                    file=file,
                    key=name,
                    expected=expected.get(name, "none"),
                    found=found.get(name, "none"),
                )


class BoundGraph:
    """An ONNX Runtime session of one graph, bound to the buffers.

    There is one binding for each way the buffers' sides can stand: in a run two, as every round turns over
    the same buffers.
    """

    def __init__(self, session: Any, spec: GraphSpec, buffers: Mapping[str, Buffer]) -> None:
        self._session = session
        self._tensors = [(one, buffers[one.name]) for one in spec.tensors if one.kind != "weight"]
        self._outputs = {output.name for output in session.get_outputs()}
        in_place = set(session.get_modelmeta().custom_metadata_map.get(IN_PLACE, "").split(","))
        self._turning = [
            buffer
            for one, buffer in self._tensors
            if present(one.name) in self._outputs and one.name not in in_place
        ]
        for buffer in self._turning:
            buffer.take_turns()
        self._bindings: dict[tuple[int, ...], Any] = {}

    def launch(self) -> None:
        """Runs the graph on what the buffers hold, and leaves them with what it wrote."""
        sides = tuple(buffer.side for _, buffer in self._tensors)
        if sides not in self._bindings:
            self._bindings[sides] = self._bind()
        self._session.run_with_iobinding(self._bindings[sides])
        for buffer in self._turning:
            buffer.side = 1 - buffer.side

    def _bind(self) -> Any:
        binding = self._session.io_binding()
        for spec, buffer in self._tensors:
            name = past(spec.name) if spec.kind == "state" else spec.name
            binding.bind_input(name, *_described(spec, buffer.places[buffer.side]))
            if present(spec.name) in self._outputs:
                side = 1 - buffer.side if buffer in self._turning else buffer.side
                binding.bind_output(present(spec.name), *_described(spec, buffer.places[side]))
        return binding


def _described(spec: TensorSpec, memory: memoryview) -> tuple[str, int, int, tuple[int, ...], int]:
    """Device, its number, element type, shape and address, as a binding takes them."""
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    return "cpu", 0, _ELEMENT_TYPES[spec.dtype], spec.shape, address
