"""The eager driver over GE programs: every launch evaluates one, on the session's own weights and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.compile.npu.ge_program import GeProgram, to_ge
from nextn.compile.trace import trace
from nextn.graphs.driver import GraphKey, Request, Session, eager_graphs
from nextn.graphs.model import Model
from nextn.graphs.phases import graph_keys, slots_input
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
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

    def eager(self, **options: bool) -> Session:
        model, state = _fresh(self.shape, self.weights)
        return Session(self.shape, state, eager_graphs(model, state, self.shape), **options)

    def evaluated(self, order: Order = "file", **options: bool) -> Session:
        """Every program in one of the orders its edges allow."""
        model, state = _fresh(self.shape, self.weights)
        graphs = {key: launcher(program, model, state, order) for key, program in self.programs.items()}
        return Session(self.shape, state, graphs, **options)


def launcher(program: GeProgram, model: Model, state: State, order: Order) -> Callable[[], list[Tensor]]:
    return lambda: evaluate(program.graph, bound(program, model, state), order)


def bound(program: GeProgram, model: Model, state: State) -> list[Tensor]:
    """What each input of a program is, by index."""
    return [(model if spec.kind == "weight" else state).get_buffer(spec.name) for spec in program.tensors]


def requests() -> list[Request]:
    """Three for two slots: past a chunk, a C4 block and the window; one of a single token."""
    return [
        Request([3, 1, 4, 1, 5, 9, 2, 6, 5] * 3, 24, seed=5, temperature=0.8),
        Request([7], 20),
        Request([8, 2] * 20, 12, seed=11, temperature=1.2),
    ]


def outcome(session: Session) -> list[tuple[list[int], list[int], str | None]]:
    """Tokens, accept lengths and finish reason of every request."""
    with torch.no_grad():
        done = session.generate(requests())
    return [(one.tokens, one.accept_lens, one.finish_reason) for one in done]


def largest_difference(found: State, expected: State) -> float:
    """Over all state; integers count too."""
    pairs = zip(found.buffers(), expected.buffers(), strict=True)
    return max(float((one.double() - other.double()).abs().max()) for one, other in pairs)


def _fresh(shape: SessionShape, weights: Mapping[str, Tensor]) -> tuple[Model, State]:
    model, state = Model(shape), State(shape)
    model.load_weights(weights)
    return model, state
