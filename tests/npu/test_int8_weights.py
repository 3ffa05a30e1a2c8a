"""A ModelSlim W8A8 checkpoint whose int8 matrices stay int8, in the file, in the graphs and in products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nextn.graphs.eager_session import GraphKey
from nextn.graphs.model import derived_constants
from nextn.graphs.ops import int8_rows
from nextn.graphs.phases import graph_keys
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.errors import UsageError
from nextn.runtime.contract.manifest import parse_manifest
from nextn.weights import Checkpoint, load_packed, pack_weights, packed_weights
from nextn.weights.pack_items import common_encoding
from tests.npu.launches import Launch, record, repeat
from tests.npu.sessions import Converted, difference, outcome, requests
from tests.npu.test_emit_air import SMALL, compile_air
from tests.oracles import published_layouts as layouts
from tests.oracles.ge_evaluator import evaluate
from tests.oracles.synthetic import CASES, random_weights

NEARBY = 3e-5
"""Of a code: what last bits of float32 move values of up to 127 codes by."""

STATE_TOLERANCE = 1e-5
"""Measured: 0 in bfloat16, where products are fused; 2.3e-6 in float32, where they are plain."""

FUSED = {"linear": "npu_quant_matmul", "expert_mlp": "npu_grouped_matmul"}
PLAIN = dict.fromkeys(FUSED, "plain")

ROUNDS_ONLY: list[GraphKey] = [("prefill", 1), ("seed", 1), ("round", 2)]


def write_checkpoint(folder: Path, case: str) -> Path:
    config = CASES[case].config | {"hc_sinkhorn_iters": 4}
    layouts.write_layout(folder / case, "modelslim more", config, random_weights(config, seed=7))
    return folder / case


def convert(folder: Path, case: str, dtype: str, steps: int, keys: list[GraphKey] | None) -> Converted:
    checkpoint = Checkpoint.open(write_checkpoint(folder, case))
    packed = packed_weights(checkpoint.config, steps > 0)
    stored = tuple(w.name for w in packed if common_encoding(checkpoint, w) == "int8_row")
    assert stored
    shape = SessionShape(
        checkpoint.config,
        dtype,
        num_steps=steps,
        batch_sizes=(2,),
        max_seq_len=192,
        prefill_chunk=16,
        stored_layouts=tuple((name, "int8_row") for name in stored),
    )
    constants = derived_constants(checkpoint.config)
    file = folder / "weights"
    pack_weights(checkpoint, packed, getattr(torch, dtype), file, constants, keep=("int8_row",))
    return Converted.convert(shape, load_packed(file), keys)


def quantise_rows_nearby(shift: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """As the product's own, but for values within `shift` of the middle between two codes."""

    def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
        step = x.float().abs().amax(-1, keepdim=True) / int8_rows.LARGEST_CODE
        codes = torch.round(x.float() / torch.where(step == 0.0, 1.0, step) + shift)
        return codes.clamp(-int8_rows.LARGEST_CODE, int8_rows.LARGEST_CODE), step

    return quantise_rows


def undecided(converted: Converted, key: GraphKey, launch: Launch) -> float:
    """How much of what a launch leaves hangs on values between two codes, which a last bit decides."""
    largest = 0.0
    for shift in (NEARBY, -NEARBY):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(int8_rows, "quantise_rows", quantise_rows_nearby(shift))
            other = repeat(converted, key, launch)
        largest = max(largest, *map(difference, other, launch.after))
    return largest


def assert_equals_eager(converted: Converted, *modes: str) -> None:
    """Tokens of whole sessions; what launches leave, where no last bit decides a code."""
    for mode in modes:
        options = {"phases": mode == "phases", "speculation": mode != "plain"}
        assert outcome(converted.evaluated("writes first", **options)) == outcome(converted.eager(**options))
    for key, program in converted.programs.items():
        launches = record(converted, key, requests())
        equal = 0
        for launch in launches:
            found = [tensor.clone() for tensor in launch.before]
            evaluate(program.graph, found)
            largest = max(map(difference, found, launch.after))
            if largest <= STATE_TOLERANCE:
                equal += 1
            else:  # any part of the codes in doubt may turn out either way
                assert largest <= 2 * undecided(converted, key, launch), key
        # Measured: 14 of 17 of a `prefill` in bfloat16, of other graphs 18 of 20 and more.
        assert equal >= 0.75 * len(launches), key


@pytest.mark.parametrize(("steps", "mode"), [(0, "plain"), pytest.param(1, "round", marks=pytest.mark.full)])
def test_sessions_equal_eager(tmp_path: Path, steps: int, mode: str) -> None:
    keys = ROUNDS_ONLY if mode == "round" else None
    converted = convert(tmp_path, "window_only", "bfloat16", steps, keys)
    for program in converted.programs.values():
        assert FUSED.items() <= program.fused_ops.items()
        kinds = Counter(operator.type for operator in program.graph.op)
        assert kinds["QuantBatchMatmulV3"] and kinds["DynamicQuant"] and kinds["GroupedMatmul"]
    assert_equals_eager(converted, mode)


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "fused_ops"), [("bfloat16", FUSED), ("float32", PLAIN)])
def test_every_graph_converts_and_equals_eager(tmp_path: Path, dtype: str, fused_ops: dict[str, str]) -> None:
    converted = convert(tmp_path, "tiny", dtype, 2, None)
    assert list(converted.programs) == graph_keys(converted.shape)
    for key, program in converted.programs.items():
        if key[0] != "accept":
            assert fused_ops.items() <= program.fused_ops.items(), key
    assert_equals_eager(converted, "round", "phases", "plain")


@pytest.mark.full
def test_an_artifact_keeps_int8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = str(write_checkpoint(tmp_path, "window_only"))
    artifact = tmp_path / "artifact"
    stored = [checkpoint, "-o", str(artifact), *SMALL, "--weights-as", "stored"]
    compile_air(stored)
    manifest = parse_manifest((artifact / "manifest.json").read_text(), "manifest.json")
    assert FUSED.items() <= manifest.ops.items()
    weights = {weight.name: weight for weight in manifest.weights.tensors}
    coded = weights["layers.0.attn.wq_a.weight"]
    assert (coded.storage.layout, coded.storage.dtype, coded.dtype) == ("int8_row", "int8", "bfloat16")
    assert weights["layers.0.attn.wo_a.weight"].storage.layout == "plain"
    for graph in manifest.graphs:
        bound = {tensor.name: tensor.dtype for tensor in graph.tensors}
        assert bound[coded.name] == "int8" and bound[str(coded.scales)] == "float32"
    capsys.readouterr()
    compile_air(stored, ("false",))
    assert "is up to date" in capsys.readouterr().out
    with pytest.raises(UsageError, match="made from other inputs or options"):
        compile_air([checkpoint, "-o", str(artifact), *SMALL], ("false",))
