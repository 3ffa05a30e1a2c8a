"""How much work a round is: launches, NextN forwards, and the equality of fused and separate phases."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from nextn.graphs.eager_session import EagerRequest, EagerSession
from nextn.graphs.phases import build_graph, graph_keys
from nextn.graphs.state import State, state_table
from tests.rounds.product import Product


def requests_of(product: Product) -> list[EagerRequest]:
    return [
        EagerRequest(product.oracle.prompt(length, seed=length), 15, seed=length, temperature=temperature)
        for length, temperature in ((3, 0.0), (10, 0.8), (20, 0.8))
    ]


def count_forwards(session: EagerSession) -> Counter[str]:
    """Counts calls of NextN's layer and of the first Target layer from now on."""
    counts: Counter[str] = Counter()
    graph = next(iter(session.graphs.values()))
    modules = {"nextn": graph.model.nextn, "target": graph.model.layers[0]}
    for name, module in modules.items():
        module.register_forward_hook(lambda *_, name=name: counts.update([name]))
    return counts


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_launches_and_forwards_of_a_steady_round(product_of, num_steps):
    """One launch fused; else verify, accept, extend and k - 1 steps. One Target and k NextN forwards."""
    product = product_of("window_only")
    separate = ["verify", "accept", "draft_extend"] + ["draft_step"] * (num_steps - 1)
    for phases, expected in ((False, ["round"]), (True, separate)):
        session = product.session(product.shape(num_steps, (1, 4)), phases=phases)
        session.prefill(0, EagerRequest(product.oracle.prompt(5, seed=1), 20))
        counts = count_forwards(session)
        session.launches.clear()
        session.round()
        assert session.launches == [(name, 1) for name in expected]
        assert counts == {"target": 1, "nextn": num_steps}


def test_launches_of_a_prompt(product_of):
    """One prefill per chunk, then one seed of k NextN forwards."""
    product = product_of("window_only")
    session = product.session(product.shape(3, (1, 4), prefill_chunk=4))
    counts = count_forwards(session)
    session.prefill(0, EagerRequest(product.oracle.prompt(9, seed=1), 20))
    assert session.launches == [("prefill", 1)] * 3 + [("seed", 1)]
    assert counts == {"target": 3, "nextn": 3}


def test_smallest_bucket_that_holds_the_live_slots(product_of):
    """https://github.com/vllm-project/vllm/issues/30330: buckets chosen for another number of rows."""
    product = product_of("window_only")
    session = product.session(product.shape(3, (1, 2, 4)))
    sizes = []
    for slot in range(4):
        session.prefill(slot, EagerRequest(product.oracle.prompt(4, seed=slot), 40))
        session.launches.clear()
        session.round()
        sizes += session.launches
    assert sizes == [("round", 1), ("round", 2), ("round", 4), ("round", 4)]


@pytest.mark.parametrize("name", ["tiny", "two_streams"])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_phases_equal_the_round(product_of, name, num_steps):
    """Token for token, and bit for bit in every buffer.

    https://github.com/vllm-project/vllm/issues/48892: separately captured steps all baked in step 0.
    """
    product = product_of(name)
    shape = product.shape(num_steps, (1, 4))
    # The programs' phases: `test_programs_equal_the_modules`.
    fused, separate = product.session(shape, eager=True), product.session(shape, phases=True, eager=True)
    found, expected = separate.generate(requests_of(product)), fused.generate(requests_of(product))
    for one, reference in zip(found, expected, strict=True):
        assert (one.tokens, one.accept_lens) == (reference.tokens, reference.accept_lens)
    for spec in state_table(shape):
        assert torch.equal(separate.state.get_buffer(spec.name), fused.state.get_buffer(spec.name)), spec.name


def test_without_steps_there_is_only_prefill_and_decode(product_of):
    """k = 0: two kinds of graphs, no NextN weights or state, and the tokens of the k = 3 plain run."""
    product = product_of("tiny")
    shape = product.shape(0, (1, 4))
    assert graph_keys(shape) == [("prefill", 1), ("decode", 1), ("decode", 4)]
    assert not [spec.name for spec in state_table(shape) if spec.name.startswith("nextn")]
    assert not [name for name, _ in product.model(with_nextn=False).named_buffers() if "mtp" in name]
    session = product.session(shape, eager=True)
    found = session.generate(requests_of(product))
    plain = product.generate(requests_of(product), product.shape(3, (1, 4)), speculation=False)
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    assert all(set(one.accept_lens) == {1} for one in found)
    assert {name for name, _ in session.launches} == {"prefill", "decode"}


def test_graph_table(product_of):
    """Every graph of the table can be built; `draft_step` exists from k = 2 on."""
    product = product_of("window_only")
    per_batch = ["decode", "verify", "accept", "draft_extend", "draft_step", "round"]
    for num_steps, absent in ((1, {"draft_step"}), (2, set()), (8, set())):
        shape = product.shape(num_steps, (1, 3))
        keys = graph_keys(shape)
        names = [name for name in per_batch if name not in absent]
        assert keys == [("prefill", 1), ("seed", 1), *((name, b) for b in (1, 3) for name in names)]
        state = State(shape)
        for key in keys:
            assert build_graph(*key, product.model(), state, shape)() == ()
    with pytest.raises(AssertionError, match="no graph named verify_all"):
        build_graph("verify_all", 1, product.model(), state, shape)
