"""Equal calls become one; calls that only look equal stay apart."""

from __future__ import annotations

import torch
from torch import fx

from nextn.compile.targets.air.ge_program import merge_equal_calls

ATEN = torch.ops.aten


def test_equal_calls_are_merged_and_others_are_not() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    call = graph.call_function
    once = [call(ATEN.mul.Tensor, (x, y)) for _ in range(3)]
    # Equal only once what they take has become one.
    chained = [call(ATEN.add.Tensor, (one, 1)) for one in once]
    apart = [
        call(ATEN.mul.Tensor, (y, x)),
        call(ATEN.add.Tensor, (once[0], 1.0)),
        call(ATEN.add.Tensor, (once[0], True)),
        call(ATEN.sum.dim_IntList, (x, [0])),
        call(ATEN.sum.dim_IntList, (x, [0]), {"dtype": torch.float64}),
    ]
    graph.output((*once, *chained, *apart))
    values = torch.arange(6.0).view(2, 3), torch.rand(2, 3)
    expected = fx.Interpreter(fx.GraphModule({}, graph)).run(*values)
    merge_equal_calls(graph)
    graph.lint()
    assert sum(node.op == "call_function" for node in graph.nodes) == 2 + len(apart)
    found = fx.Interpreter(fx.GraphModule({}, graph)).run(*values)
    assert [one.dtype for one in found] == [one.dtype for one in expected]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
