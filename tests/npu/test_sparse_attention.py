"""Graphs of a model with the release's widths of attention, through the operators of its package."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from nextn.compile.build.trace import trace
from nextn.compile.targets.air.ge_program import to_ge
from nextn.graphs.eager_session import EagerRequest, EagerSession, GraphKey, eager_graphs
from nextn.graphs.model import Model, derived_constants
from nextn.graphs.phases import slots_input
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State, state_table
from nextn.runtime.contract.errors import ExecutionError
from nextn.weights import Checkpoint, load_weights, packed_weights
from tests.npu.sessions import launcher
from tests.oracles.ge_evaluator import Order
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

CONFIG = CASES["tiny"].config | {
    "hidden_size": 1024,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 2,
    "o_groups": 8,
    "n_routed_experts": 3,
    "num_experts_per_tok": 3,
}
"""One layer of each kind. No width of the operators can be smaller; no rounding can choose another expert."""

OPERATORS = ("Compressor", "LightningIndexer", "SparseAttnSharedkv")

CALLS = {
    "SparseAttnSharedkv": 3,
    # A C4 layer has a compressor for its entries and one for their index.
    "Compressor": 3,
    "LightningIndexer": 1,
    # Layers of one ratio share the metadata of a window.
    "SparseAttnSharedkvMetadata": 3,
}

STEPS = 4 * 2.0**-8
"""Of bfloat16, to a largest value: queries, results and entries are rounded; plain operators round none."""


class Pair:
    """An eager session and one whose graphs in `evaluated` are GE IR, from one checkpoint."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        chunk: int,
        evaluated: tuple[GraphKey, ...],
        order: Order = "file",
        steps: int = 0,
    ) -> None:
        self.shape = shape = SessionShape(
            checkpoint.config,
            "bfloat16",
            num_steps=steps,
            batch_sizes=(max(batch for _, batch in evaluated),),
            # More entries than are chosen.
            max_seq_len=2300,
            prefill_chunk=chunk,
            entry_rows_multiples=(16, 128),
        )
        packed = packed_weights(checkpoint.config, steps > 0)
        weights = load_weights(checkpoint, packed, torch.bfloat16) | derived_constants(checkpoint.config)
        model, states = Model(shape), (State(shape), State(shape))
        model.load_weights(weights)
        self.kinds = {}
        graphs = {**eager_graphs(model, states[1], shape)}
        for key in evaluated:
            graph = trace(*key, model, states[1], shape)
            program = to_ge(graph, slots_input(*key), OPERATORS)
            self.kinds[key] = Counter(operator.type for operator in program.graph.op)
            graphs[key] = launcher(program, model, states[1], order)
        eager = eager_graphs(model, states[0], shape)
        self.sessions = [
            EagerSession(shape, state, given, speculation=steps > 0)
            for state, given in zip(states, (eager, graphs), strict=True)
        ]

    def run(self, prompt: list[int], decodes: int) -> None:
        for session in self.sessions:
            session.prefill(0, EagerRequest(prompt, decodes + 1))
            for _ in range(decodes):
                session.launch("decode", 1)

    def differences(self) -> dict[str, float]:
        """Of every state buffer, to its largest value; the scratch slot has what means nothing."""
        found = {}
        for spec in state_table(self.shape):
            eager, other = (
                session.state.get_buffer(spec.name).double().view(self.shape.slots + 1, -1)[:-1]
                for session in self.sessions
            )
            found[spec.name] = float((eager - other).abs().max()) / max(1.0, float(eager.abs().max()))
        return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("widths")
    return Checkpoint.open(write_checkpoint(folder, CONFIG, random_weights(CONFIG, seed=3)))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph engine of the fake knows the operators."""
    monkeypatch.setenv("FAKE_CANN_CUSTOM_OPS", ",".join((*OPERATORS, "SparseAttnSharedkvMetadata")))


def prompt_of(length: int) -> list[int]:
    return torch.randint(
        2, CONFIG["vocab_size"], (length,), generator=torch.Generator().manual_seed(1)
    ).tolist()


def test_windows_of_one_and_more_rows(installed: None, checkpoint: Checkpoint) -> None:
    """A prompt whose last chunk is padded, and steps that complete an entry."""
    pair = Pair(checkpoint, 8, (("prefill", 1), ("decode", 1)), "writes first")
    for kinds in pair.kinds.values():
        assert {name: kinds[name] for name in CALLS} == CALLS
    pair.run(prompt_of(13), 4)
    assert max(pair.differences().values()) <= STEPS, pair.differences()


@pytest.mark.full
def test_far_from_the_beginning(installed: None, checkpoint: Checkpoint) -> None:
    """More entries are visible than are chosen, the window is full, and C128 layers have entries."""
    pair = Pair(checkpoint, 64, (("decode", 1),))
    pair.run(prompt_of(2110), 3)
    assert max(pair.differences().values()) <= STEPS, pair.differences()


@pytest.mark.full
def test_rounds_of_two_requests(installed: None, checkpoint: Checkpoint) -> None:
    """NextN's ring too; one request passes the end of a C128 block while it decodes."""
    pair = Pair(checkpoint, 32, (("prefill", 1), ("round", 2)), steps=2)
    outcomes = []
    for session in pair.sessions:
        asked = [EagerRequest(prompt_of(125), 14, seed=5, temperature=0.8), EagerRequest(prompt_of(3), 12)]
        outcomes.append([(one.tokens, one.accept_lens) for one in session.generate(asked)])
    assert outcomes[0] == outcomes[1]
    assert any(length > 1 for _, accept_lens in outcomes[0] for length in accept_lens)
    # A draft's streams went through twice the layers. Measured: 0.019.
    assert max(pair.differences().values()) <= 2 * STEPS, pair.differences()


@pytest.mark.full
def test_a_compile_without_an_npu_is_told_why(
    installed: None, monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint
) -> None:
    def no_device(device: str) -> None:
        raise RuntimeError("Invalid device id: " + device)

    monkeypatch.setattr("torch_npu.npu.get_device_properties", no_device)
    with pytest.raises(ExecutionError, match="number of cores of the chip that is here, and none is"):
        Pair(checkpoint, 8, (("decode", 1),))


def test_without_the_package_the_operator_is_named(checkpoint: Checkpoint) -> None:
    with pytest.raises(ExecutionError, match="operator without a converter to GE IR"):
        Pair(checkpoint, 8, (("decode", 1),))
