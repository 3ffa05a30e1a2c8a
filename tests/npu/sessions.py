"""The eager driver over GE programs: every launch evaluates one, on the session's own weights and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.compile.build.trace import trace
from nextn.compile.targets.air.ge_program import GeProgram, to_ge
from nextn.graphs.eager_session import EagerRequest, EagerSession, GraphKey, eager_graphs
from nextn.graphs.model import Model, derived_constants
from nextn.graphs.phases import graph_keys, slots_input
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.weights import Checkpoint, load_weights, packed_weights
from tests.oracles.ge_evaluator import Order, evaluate


@dataclass(frozen=True)
class Converted:
    """A model's graphs as GE programs, and fresh models and states to run them on."""

    shape: SessionShape
    weights: Mapping[str, Tensor]
    programs: Mapping[GraphKey, GeProgram]

    @classmethod
    def convert(
        cls, shape: SessionShape, weights: Mapping[str, Tensor], keys: Sequence[GraphKey] | None = None
    ) -> Converted:
        """All graphs of `shape`, or those of `keys`."""
        model, state = _fresh(shape, weights)
        programs = {
            key: to_ge(trace(*key, model, state, shape), slots_input(*key))
            for key in keys or graph_keys(shape)
        }
        return cls(shape, weights, programs)

    def eager(self, **options: bool) -> EagerSession:
        model, state = _fresh(self.shape, self.weights)
        return EagerSession(self.shape, state, eager_graphs(model, state, self.shape), **options)

    def evaluated(self, order: Order = "file", **options: bool) -> EagerSession:
        """Every program in one of the orders its edges allow."""
        model, state = _fresh(self.shape, self.weights)
        graphs = {key: launcher(program, model, state, order) for key, program in self.programs.items()}
        return EagerSession(self.shape, state, graphs, **options)


def convert_plain(
    checkpoint: Checkpoint, shape: SessionShape, keys: Sequence[GraphKey] | None = None
) -> Converted:
    """With all weights in the shape's dtype."""
    packed = packed_weights(checkpoint.config, shape.num_steps > 0)
    weights = load_weights(checkpoint, packed, getattr(torch, shape.dtype))
    return Converted.convert(shape, weights | derived_constants(checkpoint.config), keys)


def launcher(program: GeProgram, model: Model, state: State, order: Order) -> Callable[[], list[Tensor]]:
    return lambda: evaluate(program.graph, bound(program, model, state), order)


def bound(program: GeProgram, model: Model, state: State) -> list[Tensor]:
    """What each input of a program is, by index."""
    return [(model if spec.kind == "weight" else state).get_buffer(spec.name) for spec in program.tensors]


def requests() -> list[EagerRequest]:
    """For two slots: past a C128 block and what a C4 layer selects; a single token; short ones that draw."""
    long = [(37 * i * i + 11 * i) % 95 + 2 for i in range(131)]
    short = [
        EagerRequest([5 * i + 3, 90 + i, 7 * i + 2], 2 + i % 3, seed=20 + i, temperature=1.0 + i % 2)
        for i in range(5)
    ]
    return [
        EagerRequest(long, 20, seed=5, temperature=0.8),
        EagerRequest([7], 20),
        EagerRequest([8, 2] * 10, 10, seed=11, temperature=1.2),
        *short,
    ]


def outcome(session: EagerSession) -> list[tuple[list[int], list[int], str | None]]:
    """Tokens, accept lengths and finish reason of every request."""
    with torch.no_grad():
        done = session.generate(requests())
    return [(one.tokens, one.accept_lens, one.finish_reason) for one in done]


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest, of floats as a part of the largest if that is above 1; inf where one is no number."""
    largest = float((found.double() - expected.double()).abs().max())
    if largest != largest:
        return float("inf")
    return largest / max(1.0, float(expected.abs().max())) if expected.is_floating_point() else largest


def largest_difference(found: State, expected: State) -> float:
    """Over all state; integers count too."""
    return max(map(difference, found.buffers(), expected.buffers()))


def _fresh(shape: SessionShape, weights: Mapping[str, Tensor]) -> tuple[Model, State]:
    model, state = Model(shape), State(shape)
    model.load_weights(weights)
    return model, state
