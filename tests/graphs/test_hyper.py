"""Hyper-connections against loops over streams, with a comb that tells C from its transpose."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nextn.graphs.config import ModelConfig
from nextn.graphs.hyper import Mixing, hyper_head, hyper_pre
from nextn.graphs.ops.hyper_connection import hyper_post, sinkhorn
from nextn.weights.config_json import parse_model_config
from tests.oracles.synthetic import CASES

ROWS = 3


def config_of(name: str) -> ModelConfig:
    return parse_model_config(CASES[name].config, "config.json")[0]


def sinkhorn_loop(score: list[list[float]], iterations: int, eps: float) -> list[list[float]]:
    """The published procedure, entry by entry in double precision."""
    size = len(score)
    comb = []
    for row in score:
        exponentials = [math.exp(value - max(row)) for value in row]
        comb.append([value / sum(exponentials) + eps for value in exponentials])

    def columns() -> None:
        sums = [sum(comb[j][i] for j in range(size)) + eps for i in range(size)]
        for j in range(size):
            comb[j] = [value / total for value, total in zip(comb[j], sums, strict=True)]

    columns()
    for _ in range(iterations - 1):
        for j in range(size):
            total = sum(comb[j]) + eps
            comb[j] = [value / total for value in comb[j]]
        columns()
    return comb


@pytest.mark.parametrize("streams", [2, 3, 4])
@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_sinkhorn_equals_the_loop(streams, iterations):
    score = 2.0 * torch.randn(ROWS, streams, streams, generator=torch.Generator().manual_seed(streams))
    found = sinkhorn(score, iterations, 1e-6)
    expected = torch.tensor([sinkhorn_loop(row.tolist(), iterations, 1e-6) for row in score])
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(found.sum(1), torch.ones(ROWS, streams), rtol=0, atol=1e-4)  # columns last


def test_post_applies_the_transpose_of_comb():
    """X'_k = post_k y + sum over j of C[j, k] X_j; C itself gives another, equally plausible result."""
    generator = torch.Generator().manual_seed(0)
    streams, hidden = 4, 5
    x, y = (
        torch.randn(ROWS, streams, hidden, generator=generator),
        torch.randn(ROWS, hidden, generator=generator),
    )
    post = torch.rand(ROWS, streams, generator=generator)
    comb = torch.tensor(
        [[0.7, 0.2, 0.1, 0.0], [0.0, 0.6, 0.3, 0.1], [0.2, 0.0, 0.5, 0.3], [0.1, 0.2, 0.1, 0.6]]
    )
    found = hyper_post(y, x, post, comb.expand(ROWS, -1, -1))
    for row in range(ROWS):
        for k in range(streams):
            expected = post[row, k] * y[row] + sum(comb[j, k] * x[row, j] for j in range(streams))
            torch.testing.assert_close(found[row, k], expected, rtol=0, atol=1e-6)
    transposed = hyper_post(y, x, post, comb.t().expand(ROWS, -1, -1))
    assert (found - transposed).abs().max() > 0.1


def random_mixing(config: ModelConfig, outputs: int, scales: int) -> Mixing:
    generator = torch.Generator().manual_seed(outputs)
    fn = torch.randn(outputs, config.stream_width, generator=generator) / math.sqrt(config.stream_width)
    return Mixing(
        fn, torch.randn(outputs, generator=generator), torch.rand(scales, generator=generator) + 0.5
    )


def mixed(x: Tensor, parameters: Mixing, eps: float) -> Tensor:
    """`[out]` float64 of one row `x [M, H]`: the linear map of the row scaled to unit rms."""
    flat = x.reshape(-1).double()
    return parameters.fn.double() @ flat / torch.sqrt((flat * flat).mean() + eps)


@pytest.mark.parametrize("name", ["tiny", "two_streams", "three_streams"])
def test_pre_equals_the_formula(name):
    config = config_of(name)
    m = config.hc_mult
    parameters = random_mixing(config, (2 + m) * m, 3)
    x = torch.randn(ROWS, m, config.hidden_size, generator=torch.Generator().manual_seed(1))
    found, post, comb = hyper_pre(x, parameters, config)
    for row in range(ROWS):
        mix = mixed(x[row], parameters, config.rms_norm_eps)
        scale, base = parameters.scale.double(), parameters.base.double()
        weight = torch.sigmoid(mix[:m] * scale[0] + base[:m]) + config.hc_eps
        torch.testing.assert_close(found[row].double(), weight @ x[row].double(), rtol=0, atol=1e-5)
        expected_post = 2 * torch.sigmoid(mix[m : 2 * m] * scale[1] + base[m : 2 * m])
        torch.testing.assert_close(post[row].double(), expected_post, rtol=0, atol=1e-5)
        score = (mix[2 * m :] * scale[2] + base[2 * m :]).view(m, m)
        expected = sinkhorn_loop(score.tolist(), config.hc_sinkhorn_iters, config.hc_eps)
        torch.testing.assert_close(comb[row].double(), torch.tensor(expected).double(), rtol=0, atol=1e-5)


def test_head_equals_the_formula():
    config = config_of("three_streams")
    parameters = random_mixing(config, config.hc_mult, 1)
    x = torch.randn(ROWS, config.hc_mult, config.hidden_size, generator=torch.Generator().manual_seed(2))
    found = hyper_head(x, parameters, config)
    for row in range(ROWS):
        mix = mixed(x[row], parameters, config.rms_norm_eps)
        weight = torch.sigmoid(mix * parameters.scale.double() + parameters.base.double()) + config.hc_eps
        torch.testing.assert_close(found[row].double(), weight @ x[row].double(), rtol=0, atol=1e-5)
