"""The Target against Hugging Face in fp32: logits and streams of every position, for every shape."""

from __future__ import annotations

import pytest
import torch

from nextn.graphs.model import Model, derived_constants
from nextn.runtime.contract.errors import CheckpointError
from tests.oracles.synthetic import CASES

LENGTH = 400
"""Crosses 4, 8, 128, W, W + n and 4 * index_topk; both sides are causal, so all prefixes are compared."""

LOGITS_TOLERANCE = 1e-4
"""Measured at most 1.8e-5, with logits up to 20: what summing in another order does to fp32."""

STREAMS_TOLERANCE = 1e-4
"""Measured at most 1.1e-5."""


def assert_rows_agree(product, ids, chunk):
    expected = product.oracle.target.forward(list(ids))
    logits, streams = product.target_rows(ids, chunk)
    assert expected.logits.abs().max() > 5  # a flat model would agree with anything
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=LOGITS_TOLERANCE)
    torch.testing.assert_close(streams, expected.streams, rtol=0, atol=STREAMS_TOLERANCE)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("chunk", [16, LENGTH])
def test_all_positions_of_a_long_text(product_of, name, chunk):
    """Streams before the stream head too, which are what NextN gets.

    A rope or compressor stride fixed for one length: https://github.com/vllm-project/vllm/pull/41834.
    """
    product = product_of(name)
    assert_rows_agree(product, product.oracle.prompt(LENGTH, seed=1), chunk)


@pytest.mark.parametrize("name", ["tiny", "release_window"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9, 12, 63, 65, 127, 128, 129, 136, 137])
def test_short_texts_in_one_chunk_of_their_own_length(product_of, name, length):
    """Graphs of other widths compute the same; 1 and 2 rows also route experts by gathering."""
    product = product_of(name)
    assert_rows_agree(product, product.oracle.prompt(length, seed=length), length)


@pytest.mark.parametrize("name", ["tiny", "pro_like"])
def test_bfloat16_checkpoint_values_in_fp32(product_of, name):
    """A bfloat16 checkpoint is exact in fp32, so the tolerance does not widen."""
    product = product_of(name, torch.bfloat16)
    assert_rows_agree(product, product.oracle.prompt(150, seed=2), 16)


def test_texts_of_equal_tokens(product_of):
    """Equal keys tie everywhere; token 0 and a token that other models pad with must not be special."""
    product = product_of("tiny")
    for token in (0, 1, product.config.vocab_size - 1):
        assert_rows_agree(product, (token,) * 140, 16)


def test_weights_that_do_not_fit_are_refused_by_name(product_of):
    product = product_of("window_only")
    weights = dict(product.model().named_buffers())
    for problem in ("absent", "extra", "shape", "dtype"):
        found = dict(weights)
        if problem == "absent":
            del found["layers.1.attn.wkv.weight"]
        elif problem == "extra":
            found["layers.9.attn.wkv.weight"] = weights["layers.1.attn.wkv.weight"]
        elif problem == "shape":
            found["layers.1.attn.wkv.weight"] = weights["layers.1.attn.wkv.weight"][1:]
        else:
            found["layers.1.attn.wkv.weight"] = weights["layers.1.attn.wkv.weight"].double()
        with pytest.raises(CheckpointError, match=r"layers\.[19]\.attn\.wkv\.weight"):
            Model(product.shape()).load_weights(found)


def test_weights_are_adopted_without_copying(product_of):
    product = product_of("window_only")
    weights = dict(product.model().named_buffers())
    model = Model(product.shape())
    model.load_weights(weights)
    for name, buffer in model.named_buffers():
        assert buffer.data_ptr() == weights[name].data_ptr(), name
    assert derived_constants(product.config).keys() <= weights.keys()
