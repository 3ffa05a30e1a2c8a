"""Speculation changes speed, never a token: the same request gives the same tokens in any company."""

from __future__ import annotations

import pytest

from nextn.graphs.eager_session import EagerRequest
from tests.oracles import cache_free_rounds
from tests.oracles.synthetic import CASES
from tests.rounds.product import Product

NEW_TOKENS = 16
LENGTHS = (*range(1, 11), 127, 130)
"""One prompt of each length per temperature and case: 24 prompts, 216 over all cases."""

TIE = 1e-4

case_names = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "tiny" else pytest.mark.full) for name in CASES]
)


def requests_of(product: Product, temperature: float, new_tokens: int = NEW_TOKENS) -> list[EagerRequest]:
    return [
        EagerRequest(
            product.oracle.prompt(length, seed=40 + length), new_tokens, seed=length, temperature=temperature
        )
        for length in LENGTHS
    ]


def tokens_of(requests: list[EagerRequest]) -> list[list[int]]:
    return [request.tokens for request in requests]


@case_names
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculative_tokens_equal_plain_tokens(product_of, name, temperature):
    """Batch 1 and 4, slots in whatever order they become free.

    Greedy output changed by speculation: https://github.com/ml-explore/mlx-lm/issues/1423 and
    https://github.com/NVIDIA/TensorRT-LLM/issues/17110. Seeds broken by it:
    https://github.com/vllm-project/vllm/issues/6038.
    """
    product = product_of(name)
    alone, four = product.shape(3, (1,)), product.shape(3, (4,))
    plain = tokens_of(product.generate(requests_of(product, temperature), four, speculation=False))
    assert all(len(tokens) == NEW_TOKENS for tokens in plain)
    for shape in (alone, four):
        speculative = product.generate(requests_of(product, temperature), shape)
        assert tokens_of(speculative) == plain
        assert max(max(request.accept_lens) for request in speculative) == 4  # drafts do get accepted


@pytest.mark.parametrize(
    "num_steps", [1, 5, pytest.param(2, marks=pytest.mark.full), pytest.param(8, marks=pytest.mark.full)]
)
def test_number_of_steps_changes_no_token(product_of, num_steps):
    """https://github.com/antirez/ds4/issues/750: tokens depended on the draft depth."""
    product = product_of("tiny")
    plain = product.generate(requests_of(product, 0.8, 12), product.shape(3, (4,)), speculation=False)
    # Modules, because `test_rollback` sweeps programs of several depths already.
    found = product.generate(requests_of(product, 0.8, 12), product.shape(num_steps, (4,)), eager=True)
    assert tokens_of(found) == tokens_of(plain)


@case_names
def test_tokens_equal_the_references_plain_decoding(product_of, name):
    """Against Hugging Face, token by token; one request at most may have a near tie and is skipped."""
    product = product_of(name)
    skipped = 0
    requests = [*requests_of(product, 0.0, 12)[::2], *requests_of(product, 0.8, 12)[1::2]]
    for request in product.generate(requests, product.shape(3, (4,))):
        expected = cache_free_rounds.plain(
            product.oracle.target,
            cache_free_rounds.Request(
                tuple(request.prompt), 12, temperature=request.temperature, seed=request.seed
            ),
        )
        if min(expected.margins) < TIE:
            skipped += 1
            continue
        assert request.tokens == expected.token_ids
        assert request.finish_reason == expected.finish_reason
    assert skipped <= 1


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.full), 0.8])
def test_same_request_in_any_company(product_of, temperature):
    """Alone, twice, in a batch of four, in a padded bucket and in every slot: identical tokens.

    https://github.com/vllm-project/vllm/issues/7627: the same request differed with its batch.
    """
    product = product_of("tiny")

    def subject() -> EagerRequest:
        return EagerRequest(product.oracle.prompt(6, seed=90), 20, seed=5, temperature=temperature)

    def others(count: int) -> list[EagerRequest]:
        return [
            EagerRequest(
                product.oracle.prompt(3 + 4 * i, seed=i), 9 + 5 * i, seed=i, temperature=0.8 - temperature
            )
            for i in range(count)
        ]

    shape = product.shape(3, (1, 2, 4))
    [alone] = product.generate([subject()], shape)
    session = product.session(shape)
    again = [session.generate([subject()])[0] for _ in range(2)]
    for place in range(4):
        company = others(3)
        company.insert(place, subject())
        again.append(session.generate(company)[place])
    bucket_of_four = product.generate([subject(), *others(2)], product.shape(3, (4,)))
    late = product.generate([*others(5), subject()], product.shape(3, (2,)))
    again += [bucket_of_four[0], late[-1]]
    for request in again:
        assert (request.tokens, request.accept_lens) == (alone.tokens, alone.accept_lens)


def test_many_requests_through_few_slots(product_of):
    """Slots change hands without clearing; a long request is followed by short ones.

    Tails of longer sequences leaked into later ones: https://github.com/vllm-project/vllm-ascend/issues/14801.
    """
    product = product_of("tiny")

    def requests() -> list[EagerRequest]:
        lengths = (140, 2, 130, 5, 1, 60, 3, 9)
        return [EagerRequest(product.oracle.prompt(n, seed=n), 4 + n % 9, seed=n) for n in lengths]

    expected = [product.generate([request], product.shape(3))[0].tokens for request in requests()]
    assert tokens_of(product.generate(requests(), product.shape(3, (2,)))) == expected
