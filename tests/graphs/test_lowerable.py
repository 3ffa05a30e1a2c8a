"""The rule about operators refuses what it should."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.graphs.lowerable import assert_lowers_everywhere, operator_calls


def check(function: Callable[..., torch.Tensor], *examples: torch.Tensor) -> None:
    for node in operator_calls(make_fx(function)(*examples).graph):
        assert_lowers_everywhere(node)


def test_operators_that_some_lowering_lacks_are_refused() -> None:
    x, i = torch.ones(2, 3), torch.ones(2, dtype=torch.int64)
    for function, *examples in (
        (lambda x: x.cumprod(0), x),
        (lambda x: x.clone().log1p_(), x),
        (lambda x: torch.index_put(x, (torch.zeros(1, dtype=torch.int64),), x[:1]), x),
        (lambda x: x[None].squeeze((0,)), x),
        (lambda i: i & i, i),
    ):
        with pytest.raises(AssertionError, match="aten"):
            check(function, *examples)


def test_operators_that_every_lowering_has_pass() -> None:
    x = torch.ones(2, 3)
    check(lambda x: (x > 0) & (x < 2), x)
    check(lambda x: x.clone().index_put_((torch.zeros(1, dtype=torch.int64),), x[:1]), x)
