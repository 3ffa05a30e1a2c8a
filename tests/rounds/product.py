"""The product side of a test: one oracle case, loaded as a compile loads it, in sessions of any shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nextn.graphs.config import ModelConfig
from nextn.graphs.eager_session import EagerRequest, EagerSession, GraphKey, eager_graphs
from nextn.graphs.model import Model, derived_constants
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.graphs.window import Window
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.packed import packed_weights
from nextn.weights.tensor_reader import load_weights
from tests.oracles.case_oracle import CaseOracle
from tests.rounds.programs import Programs, SessionPrograms

MAX_SEQ_LEN = 192
"""Enough for prompts past one C128 block; short, so that the dense entry tables stay small."""


@dataclass
class Product:
    """The models of one checkpoint, with and without NextN, next to the references of the same files.

    With `exported`, sessions run the programs that are lowered; without, the modules these come from,
    which takes no export (2 to 4 s a program).
    """

    oracle: CaseOracle
    config: ModelConfig
    exported: bool
    models: dict[bool, Model] = field(default_factory=dict)
    programs: Programs = field(default_factory=Programs)

    @classmethod
    def load(cls, oracle: CaseOracle, *, exported: bool = False) -> Product:
        return cls(oracle, Checkpoint.open(oracle.folder).config, exported)

    def model(self, with_nextn: bool = True) -> Model:
        """Loaded once; all shapes of one checkpoint share it."""
        if with_nextn not in self.models:
            checkpoint = Checkpoint.open(self.oracle.folder)
            weights = load_weights(checkpoint, packed_weights(self.config, with_nextn), torch.float32)
            model = Model(self.shape(3 if with_nextn else 0))
            model.load_weights({**weights, **derived_constants(self.config)})
            self.models[with_nextn] = model
        return self.models[with_nextn]

    def shape(
        self,
        num_steps: int = 3,
        batch_sizes: tuple[int, ...] = (1,),
        max_seq_len: int = MAX_SEQ_LEN,
        prefill_chunk: int = 16,
    ) -> SessionShape:
        return SessionShape(
            self.config,
            num_steps=num_steps,
            batch_sizes=batch_sizes,
            max_seq_len=max_seq_len,
            prefill_chunk=prefill_chunk,
        )

    def session(
        self, shape: SessionShape, *, speculation: bool = True, phases: bool = False, eager: bool = False
    ) -> EagerSession:
        """A fresh session; `eager` asks for the modules whatever the product runs otherwise."""
        state, model = State(shape), self.model(shape.num_steps > 0)
        graphs: Mapping[GraphKey, Callable[[], object]] = (
            SessionPrograms(self.programs, model, state, shape)
            if self.exported and not eager
            else eager_graphs(model, state, shape)
        )
        return EagerSession(shape, state, graphs, speculation=speculation, phases=phases)

    def generate(
        self, requests: list[EagerRequest], shape: SessionShape, **options: bool
    ) -> list[EagerRequest]:
        """Run `requests` in a fresh session."""
        return self.session(shape, **options).generate(requests)

    def target_rows(self, ids: tuple[int, ...], chunk: int) -> tuple[Tensor, Tensor]:
        """Logits `[T, vocab]` and streams `[T, M, H]` of one request, in windows of `chunk` rows."""
        shape = self.shape(max_seq_len=len(ids) + 1, prefill_chunk=chunk)
        state, model = State(shape), self.model()
        streams = []
        for start in range(0, len(ids), chunk):
            piece = ids[start : start + chunk]
            padded = torch.tensor([*piece, *[0] * (chunk - len(piece))])
            window = Window(
                slots=torch.tensor([0]),
                start=torch.tensor([start]),
                count=torch.tensor([len(piece)]),
                num_rows=chunk,
                scratch_slot=shape.slots,
            )
            streams.append(model.target(padded, window, state)[: len(piece)])
        rows = torch.cat(streams)
        return model.logits(model.target_hidden(rows)), rows
