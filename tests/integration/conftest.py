"""Real artifacts in real sessions; every test here replays compiled graphs through libnextn."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import nextn.runtime
from nextn.compile.build.golden import WatchedModel
from nextn.graphs.config import ModelConfig
from nextn.graphs.eager_session import EagerRequest, EagerSession, eager_graphs
from nextn.graphs.model import Model as EagerModel
from nextn.graphs.ops.sample_token import gumbel_noise
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import SessionResult
from nextn.weights.pack import load_packed
from tests.conftest import CompiledArtifacts
from tests.oracles.case_oracle import random_prompt


@dataclass(frozen=True)
class Ask:
    """One request, in the terms both sessions understand."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = True


def asks(
    vocab_size: int, count: int, *, longest: int, new_tokens: int, temperature: float, first: int = 0
) -> list[Ask]:
    """Requests number `first` and following: mixed prompt lengths, each with its own text and seed."""
    return [
        Ask(random_prompt(vocab_size, 1 + (37 * i) % longest, i), new_tokens, temperature, seed=i)
        for i in range(first, first + count)
    ]


def run_native(model: Model, requests: Sequence[Ask], **session_options: object) -> list[SessionResult]:
    """All requests in one session of the compiled artifact."""
    with model.session(**session_options) as session:  # type: ignore[arg-type]
        ids = [
            session.submit(
                ask.prompt,
                max_new_tokens=ask.max_new_tokens,
                temperature=ask.temperature,
                seed=ask.seed,
                ignore_eos=ask.ignore_eos,
            )
            for ask in requests
        ]
        assert session.run()
        return [session.result(one) for one in ids]


def eager_session(artifact: Path, model_type: type[EagerModel] = EagerModel, **options: bool) -> EagerSession:
    """An eager session over the artifact's own packed weights and shape."""
    with Model(artifact) as model:
        manifest = model.manifest
    shape = SessionShape(
        ModelConfig.from_dict(manifest.model.config),
        manifest.target.dtype,
        manifest.speculation.num_steps,
        tuple(manifest.limits.batch_sizes),
        manifest.limits.max_seq_len,
        manifest.limits.prefill_chunk,
    )
    eager, state = model_type(shape), State(shape)
    eager.load_weights(load_packed(artifact / manifest.weights.file))
    return EagerSession(shape, state, eager_graphs(eager, state, shape), **options)


def draw_scores(artifact: Path, ask: Ask, known: Sequence[int]) -> torch.Tensor:
    """What the token after the prompt and `known` is the argmax of, `[vocab]`, by the eager modules."""
    session = eager_session(artifact, WatchedModel)
    request = EagerRequest((*ask.prompt, *known), 1, seed=ask.seed, temperature=ask.temperature)
    with torch.no_grad():
        session.generate([request])
    watched = next(iter(session.graphs.values())).model
    logits = watched.seen[-1].flatten()
    position = torch.tensor([[len(request.prompt)]])
    return logits + ask.temperature * gumbel_noise(torch.tensor([ask.seed]), position, len(logits)).flatten()


def run_eager(artifact: Path, requests: Sequence[Ask], **options: bool) -> list[EagerRequest]:
    """The same requests through the eager modules."""
    return run_in(eager_session(artifact, **options), requests)


def run_in(session: EagerSession, requests: Sequence[Ask]) -> list[EagerRequest]:
    """The same requests in an eager session."""
    eos = session.shape.config.eos_token_ids
    made = [
        EagerRequest(
            ask.prompt,
            ask.max_new_tokens,
            () if ask.ignore_eos else eos,
            seed=ask.seed,
            temperature=ask.temperature,
        )
        for ask in requests
    ]
    with torch.no_grad():
        return session.generate(made)


def build_host(source: Path, program: Path) -> Path:
    """A C++ program built with plain g++ against the installed package."""
    folders = [Path(folder) for folder in nextn.runtime.__path__]
    library = next(folder / "lib" for folder in folders if (folder / "lib" / "libnextn.so").exists())
    include = next(folder / "include" for folder in folders if (folder / "include" / "nextn.hpp").exists())
    flags = ["-std=c++17", "-I", include, source, "-o", program, "-L", library, "-lnextn"]
    subprocess.run(["g++", *map(str, flags), f"-Wl,-rpath,{library}"], check=True)
    return program


@pytest.fixture(scope="module")
def speculative(compiled_artifact: CompiledArtifacts) -> Path:
    """k = 3, batch sizes 1 and 4, one layer of each kind."""
    return compiled_artifact("speculative")


@pytest.fixture(scope="module")
def model(speculative: Path) -> Iterator[Model]:
    with Model(speculative) as model:
        yield model
