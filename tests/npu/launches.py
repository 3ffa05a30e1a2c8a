"""Launches of one graph in an eager session: what each found, and what the eager module left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from nextn.graphs.eager_session import EagerRequest, GraphKey
from tests.npu.sessions import Converted, bound

SESSION_OF = {"round": {}, "decode": {"speculation": False}}
"""Options of the session that launches a graph; of others, one of separate phases."""


@dataclass(frozen=True)
class Launch:
    """The tensors of a graph by index, before and after."""

    before: list[Tensor]
    after: list[Tensor]


def record(converted: Converted, key: GraphKey, asked: Sequence[EagerRequest]) -> list[Launch]:
    session = converted.eager(**SESSION_OF.get(key[0], {"phases": True}))
    program, run = converted.programs[key], session.graphs[key]
    model = run.model  # type: ignore[attr-defined]
    launches: list[Launch] = []

    def copied() -> list[Tensor]:
        """Weights are no copies: nothing changes them."""
        tensors = bound(program, model, session.state)
        pairs = zip(tensors, program.tensors, strict=True)
        return [tensor if spec.kind == "weight" else tensor.clone() for tensor, spec in pairs]

    def launch() -> None:
        before = copied()
        run()
        launches.append(Launch(before, copied()))

    session.graphs = {**session.graphs, key: launch}
    session.generate(asked)
    return launches


def repeat(converted: Converted, key: GraphKey, launch: Launch) -> list[Tensor]:
    """What the eager module leaves of the same launch, now."""
    session = converted.eager(**SESSION_OF.get(key[0], {"phases": True}))
    run = session.graphs[key]
    tensors = bound(converted.programs[key], run.model, session.state)  # type: ignore[attr-defined]
    for tensor, before in zip(tensors, launch.before, strict=True):
        tensor.copy_(before)
    run()
    return [tensor.clone() for tensor in tensors]
