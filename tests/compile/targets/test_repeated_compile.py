"""Whatever fused ops its graphs were given, a repeated compile finds an artifact made from its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from nextn.compile.build.inputs import CompileInputs, Toolchain
from nextn.compile.targets.air.target import AirTarget
from nextn.compile.targets.ascend.fused_ops import CUSTOM_OPS, FUSED_OPS
from nextn.compile.targets.fused_op import FusedOp
from nextn.compile.targets.pt2.target import Pt2Target
from nextn.compile.targets.target import Target, Tools
from nextn.graphs.session_shape import SessionShape
from nextn.weights import Checkpoint


@pytest.fixture(autouse=True)
def any_weights() -> Iterator[None]:
    """Weights are no matter of ops."""
    with mock.patch.object(CompileInputs, "_same_weights", lambda *_: True):
        yield


def inputs_for(checkpoint: Path, target: Target) -> CompileInputs:
    opened = Checkpoint.open(checkpoint)
    toolchain = Toolchain("1", "0" * 64, "2", Tools("a compiler"))
    return CompileInputs(opened, SessionShape(opened.config), target, toolchain, ("nextn-compile",))


def manifest_of(inputs: CompileInputs, ops: dict[str, str]) -> Any:
    """As far as it is compared, with what the graphs were given."""
    return SimpleNamespace(
        producer=inputs.producer,
        target=inputs.target_record,
        model=inputs.model,
        speculation=inputs.speculation,
        limits=inputs.limits,
        tokenizer=inputs.tokenizer_records(),
        ops=inputs.ops | ops,
    )


@pytest.mark.parametrize("fused", FUSED_OPS, ids=lambda fused: f"{fused.operator}-{fused.name}")
def test_with_each_fused_op(checkpoint: Path, fused: FusedOp) -> None:
    inputs = inputs_for(checkpoint, AirTarget("npu", custom_ops=fused.custom_ops))
    for recorded in (fused.name, f"plain, {fused.name}", "plain"):
        assert inputs.made(manifest_of(inputs, {fused.op: recorded}))
    assert inputs.ops["custom_ops"] == (",".join(fused.custom_ops) or "none")
    assert not inputs.made(manifest_of(inputs, {"write_rows": "plain"}))


def test_other_custom_ops_are_other_inputs(checkpoint: Path) -> None:
    """Also those that no graph calls."""
    for name in CUSTOM_OPS:
        named = inputs_for(checkpoint, AirTarget("npu", custom_ops=(name,)))
        assert not inputs_for(checkpoint, AirTarget("npu")).made(manifest_of(named, {}))


def test_with_a_fused_op_in_programs(checkpoint: Path) -> None:
    """And a program that may call none is another one: its op is recorded as plain before any graph is."""
    fused, plain = (inputs_for(checkpoint, Pt2Target("npu", fused=fused)) for fused in (True, False))
    given = {"linear": "npu_quant_matmul, plain"}
    assert fused.made(manifest_of(fused, given))
    assert not plain.made(manifest_of(fused, given))
