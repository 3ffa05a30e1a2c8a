"""Operators stay whole in an exported graph, and give the same values decomposed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nextn.graphs.ops.hyper_connection import sinkhorn
from nextn.graphs.ops.norms import rms_norm
from nextn.graphs.ops.operator import OPAQUE, OPERATORS, short_name
from nextn.graphs.ops.sample_token import sample_token
from nextn.graphs.ops.topk_entries import topk_entries


class Norms(nn.Module):
    """One operator of each kind."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        mixed = sinkhorn(x, 3, 1e-6)
        return rms_norm(mixed, weight, eps=1e-6, dtype=torch.float32)


def test_every_operator_is_in_the_table_under_its_name() -> None:
    assert {short_name(one) for one in OPERATORS} == set(
        """
        apply_rope clamped_swiglu compress hash_route hyper_post hyper_pre indexer_topk int8_linear rms_norm
        routed_experts routed_int8_experts sample_token score_route sinkhorn topk_entries unit_rms
        window_attention
        """.split()
    )
    assert OPAQUE == {sinkhorn, sample_token, topk_entries}
    for one, plain in OPERATORS.items():
        assert plain.__name__ == short_name(one)
        arguments = [argument.name for argument in one._schema.arguments]
        assert arguments == list(plain.__code__.co_varnames[: plain.__code__.co_argcount])


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Norms(), (torch.randn(2, 3, 3), torch.ones(3)), strict=False)


def test_an_exported_graph_keeps_operators_whole_and_their_arguments_positional(exported) -> None:
    calls = [node for node in exported.graph.nodes if node.op == "call_function"]
    assert [node.target for node in calls] == [sinkhorn, rms_norm]
    assert calls[0].args[1:] == (3, 1e-6) and calls[1].args[2:] == (1e-6, torch.float32)
    assert not any(node.kwargs for node in calls)


def test_only_a_table_decomposes_an_opaque_operator(exported) -> None:
    by_itself = exported.run_decompositions()
    kept = {node.target for node in by_itself.graph.nodes if node.target in OPERATORS}
    assert kept == {sinkhorn}
    by_table = exported.run_decompositions({**torch.export.default_decompositions(), **OPERATORS})
    assert not [node for node in by_table.graph.nodes if node.target in OPERATORS]
    x, weight = torch.randn(2, 3, 3), torch.rand(3)
    expected = Norms()(x, weight)
    for program in (exported, by_itself, by_table):
        torch.testing.assert_close(program.module()(x, weight), expected)
