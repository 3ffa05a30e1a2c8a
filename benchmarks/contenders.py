"""The ways to continue a prompt that the benchmark compares: same weights, greedy, fp32, one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import DeepseekV4ForCausalLM

import nextn
from nextn.compile.build.inputs import checkpoint_folder
from nextn.graphs.eager_session import EagerRequest, EagerSession, exported_graphs
from nextn.graphs.model import Model, derived_constants
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.packed import packed_weights
from nextn.weights.tensor_reader import load_weights

Contender = Callable[[Sequence[int], int], list[int]]
"""`contender(prompt ids, new tokens) -> generated ids`; EOS does not stop it, so that lengths are equal."""


def native(artifact: Path, *, speculation: bool) -> Contender:
    """Our artifact through libnextn."""
    engine = nextn.load(artifact, speculation=speculation)

    def run(prompt: Sequence[int], new_tokens: int) -> list[int]:
        completion = engine.generate(list(prompt), max_new_tokens=new_tokens, ignore_eos=True)[0]
        return list(completion.token_ids)

    return run


def exported(steps: int, max_seq_len: int) -> Contender:
    """Our exported programs run eagerly: what compiling them buys."""
    checkpoint = Checkpoint.open(checkpoint_folder("demo"))
    shape = SessionShape(checkpoint.config, num_steps=steps, max_seq_len=max_seq_len)
    weights = load_weights(checkpoint, packed_weights(shape.config, steps > 0), torch.float32)
    model = Model(shape)
    model.load_weights(weights | derived_constants(shape.config))
    state = State(shape)
    keys = [("prefill", 1), ("seed", 1), ("round", 1)] if steps > 0 else [("prefill", 1), ("decode", 1)]
    graphs = exported_graphs(model, state, shape, keys)

    def run(prompt: Sequence[int], new_tokens: int) -> list[int]:
        request = EagerRequest(prompt, new_tokens)
        EagerSession(shape, state, graphs).generate([request])
        return request.tokens

    return run


def hugging_face() -> Contender:
    """`DeepseekV4ForCausalLM.generate`, eager, with its own cache; it has no NextN."""
    model = DeepseekV4ForCausalLM.from_pretrained(checkpoint_folder("demo"), dtype=torch.float32).eval()

    def run(prompt: Sequence[int], new_tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt)])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            eos_token_id=None,
        )
        return output[0, len(prompt) :].tolist()

    return run
