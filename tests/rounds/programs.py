"""Exported programs in the place of modules: one export serves every session that needs that program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from nextn.graphs.eager_session import GraphKey, exported_graphs
from nextn.graphs.model import Model
from nextn.graphs.phases import graph_keys
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State


class Program:
    """An exported graph that runs over any state of its shape, not only the one it was exported with."""

    def __init__(self, key: GraphKey, model: Model, shape: SessionShape) -> None:
        self._bound = State(shape)
        self._module = exported_graphs(model, self._bound, shape, [key])[key]

    def run(self, state: State) -> object:
        if state is not self._bound:
            buffers = self._module.get_submodule("state")
            for name, _ in list(buffers.named_buffers()):
                setattr(buffers, name, state.get_buffer(name))
            self._bound = state
        return self._module()


class Programs:
    """The programs of one model, exported when first launched."""

    def __init__(self) -> None:
        self._made: dict[tuple[GraphKey, SessionShape], Program] = {}

    def get(self, key: GraphKey, model: Model, shape: SessionShape) -> Program:
        place = (key, _own_shape(key, shape))
        if place not in self._made:
            self._made[place] = Program(key, model, place[1])
        return self._made[place]


class SessionPrograms(Mapping[GraphKey, Callable[[], object]]):
    """The graphs of one session, by name and batch size, bound to its state."""

    def __init__(self, programs: Programs, model: Model, state: State, shape: SessionShape) -> None:
        self._programs = programs
        self._model, self._state, self._shape = model, state, shape

    def __getitem__(self, key: GraphKey) -> Callable[[], object]:
        return lambda: self._programs.get(key, self._model, self._shape).run(self._state)

    def __iter__(self) -> Iterator[GraphKey]:
        return iter(graph_keys(self._shape))

    def __len__(self) -> int:
        return len(graph_keys(self._shape))


def _own_shape(key: GraphKey, shape: SessionShape) -> SessionShape:
    """Equal for all shapes that give a graph the same program.

    The buckets beside its own matter to no graph, only how many slots there are; the chunk matters to
    `prefill` alone, which in turn knows nothing of the depth, as `decode` does not.
    """
    name, batch = key
    buckets = {shape.slots} if name in ("prefill", "seed") else {batch, shape.slots}
    return replace(
        shape,
        batch_sizes=tuple(sorted(buckets)),
        prefill_chunk=shape.prefill_chunk if name == "prefill" else 1,
        num_steps=min(shape.num_steps, 1) if name in ("prefill", "decode") else shape.num_steps,
    )
