"""Exported programs that call torch_npu's fused operators, of a W8A8 checkpoint whose weights stay int8."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from nextn.compile.cli.arguments import build_parser
from nextn.compile.cli.command import compile_command
from nextn.compile.cli.options import normalise
from nextn.runtime.bindings.model import Model
from nextn.runtime.contract.errors import ArtifactError, ExecutionError
from nextn.runtime.contract.manifest import parse_manifest
from tests.fakes.cann.log import FakeCann
from tests.npu.test_emit_air import SMALL, WORKER_ON_THE_FAKE
from tests.npu.test_int8_weights import FUSED, write_checkpoint

KERNELS = {"DynamicQuant", "QuantMatmul", "GroupedMatmul", "RmsNorm", "MoeGatingTopK"}


def compile_program(arguments: list[str]) -> None:
    options, _ = normalise(build_parser().parse_args([*arguments, "--device", "npu", "--npu-fused"]))
    compile_command(options, ("nextn-compile", *arguments), WORKER_ON_THE_FAKE)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain decoding of int8 matrices, in bfloat16."""
    folder = tmp_path_factory.mktemp("fused")
    checkpoint = write_checkpoint(folder, "window_only")
    compile_program([str(checkpoint), "-o", str(folder / "artifact"), *SMALL, "--weights-as", "stored"])
    return folder / "artifact"


def calls(file: Path) -> Counter[str]:
    """How often a program calls each operator of torch_npu."""
    program = torch.export.load(file)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return Counter(target.split(".")[1] for target in targets if target.startswith("npu."))


def test_programs_call_what_the_manifest_says(artifact: Path) -> None:
    manifest = parse_manifest((artifact / "manifest.json").read_text(), "manifest.json")
    assert (manifest.target.emit, manifest.producer.compiler) == ("pt2", "torch_npu 2.13.0")
    assert FUSED.items() <= manifest.ops.items()
    weights = {weight.name: weight for weight in manifest.weights.tensors}
    assert weights["layers.0.attn.wq_a.weight"].storage.layout == "int8_row"
    for graph in manifest.graphs:
        called = calls(artifact / graph.file)
        assert {"npu_dynamic_quant", "npu_quant_matmul", "npu_grouped_matmul"} <= set(called)
        # A product of quantised rows quantises them first; the two of the experts share their router.
        assert called["npu_dynamic_quant"] >= called["npu_quant_matmul"]


def test_a_session_captures_them(cann: FakeCann, artifact: Path) -> None:
    with cann.strict(), Model(artifact) as model:
        cann.clear()
        with model.session():
            records = cann.take()
    assert not [record for record in records if record.is_illegal_in_capture]
    launched = {record.name for record in records if record.kind == "launch" and record.captured}
    for kernel in KERNELS:
        assert any(kernel in name for name in launched), (kernel, sorted(launched))


def test_a_host_has_no_such_operators(artifact: Path) -> None:
    with (
        pytest.raises((ArtifactError, ExecutionError), match="fused operators of an NPU"),
        Model(artifact, device="cpu") as model,
    ):
        model.session()
