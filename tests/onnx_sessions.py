"""The eager driver over ONNX graphs: each launch is one function call, from pasts to presents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import torch

from nextn.compile.targets.onnx.target import OnnxTarget
from nextn.graphs.eager_session import EagerRequest, EagerSession, GraphKey, eager_graphs
from nextn.graphs.model import Model
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.weights.pack import load_packed
from tests.compile.onnx.run import open_file
from tests.onnx_artifact import small_checkpoint, write_artifact

KEYS = [("prefill", 1), ("seed", 1), ("round", 2)]
"""What a speculative session of one bucket launches."""


Outcome = list[tuple[list[int], list[int], str | None]]


@dataclass
class Exported:
    """An artifact's graphs `keys`, and fresh sessions to run them in."""

    artifact: Path
    shape: SessionShape
    keys: Sequence[GraphKey]
    opened: dict[GraphKey, Any] = field(default_factory=dict)

    def file(self, key: GraphKey) -> Path:
        return self.artifact / OnnxTarget.graph_file(f"{key[0]}.b{key[1]}")

    def model(self, key: GraphKey) -> onnx.ModelProto:
        return onnx.load(self.file(key), load_external_data=False)

    def runtime(self, key: GraphKey) -> Any:
        """The ONNX Runtime session of a graph."""
        if key not in self.opened:
            self.opened[key] = open_file(self.file(key))
        return self.opened[key]

    def eager(self, **options: bool) -> EagerSession:
        model, state = Model(self.shape), State(self.shape)
        model.load_weights(load_packed(self.artifact / OnnxTarget.weights_file))
        return EagerSession(self.shape, state, eager_graphs(model, state, self.shape), **options)

    def session(self, lost: tuple[GraphKey, str] | None = None, **options: bool) -> EagerSession:
        """`lost` is a present output of one graph that its launches do not keep."""
        state = State(self.shape)
        graphs = {
            key: launcher(self.runtime(key), state, lost[1] if lost and lost[0] == key else None)
            for key in self.keys
        }
        return EagerSession(self.shape, state, graphs, **options)


def export_small(folder: Path) -> Exported:
    checkpoint, shape = small_checkpoint(folder / "checkpoint")
    return Exported(write_artifact(folder / "artifact", checkpoint, shape, KEYS), shape, KEYS)


def launcher(session: Any, state: State, lost: str | None = None) -> Callable[[], None]:
    def launch() -> None:
        feed = {
            one.name: state.get_buffer(one.name.removeprefix("past.")).numpy() for one in session.get_inputs()
        }
        names = [one.name for one in session.get_outputs()]
        for name, value in zip(names, session.run(names, feed), strict=True):
            if name != lost:
                state.get_buffer(name.removeprefix("present.")).copy_(torch.from_numpy(value))

    return launch


def requests() -> list[EagerRequest]:
    """Three for two slots: past a chunk, many blocks and the window; one of a single token."""
    return [
        EagerRequest([3, 1, 4, 1, 5, 9, 2, 6, 5] * 3, 24, seed=5, temperature=0.8),
        EagerRequest([7], 20),
        EagerRequest([8, 2] * 20, 12, seed=11, temperature=1.2),
    ]


def long_requests() -> list[EagerRequest]:
    """Past a block of 128 while decoding, and past as many blocks of 4 as `tiny` chooses from."""
    return [
        EagerRequest([3, 1, 4, 1, 5, 9, 2, 6, 5] * 12, 60, seed=5, temperature=0.8),
        EagerRequest([7], 150, seed=2, temperature=1.0),
    ]


def outcome(session: EagerSession, asked: Sequence[EagerRequest] | None = None) -> Outcome:
    """Tokens, accept lengths and finish reason of every request; of `requests()` if none are given."""
    done = session.generate(requests() if asked is None else asked)
    return [(one.tokens, one.accept_lens, one.finish_reason) for one in done]


def differences(found: State, expected: State) -> dict[str, float]:
    """The largest by state buffer; integers count too."""
    pairs = zip(found.named_buffers(), expected.buffers(), strict=True)
    return {name: float((one.double() - other.double()).abs().max()) for (name, one), other in pairs}
