"""`--selftest`: golden runs recorded from the echo executor must replay, and any change must be found."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save

from nextn.runtime.bindings.model import Model
from nextn.runtime.contract import golden_format as form
from nextn.runtime.contract.blocks import TEMPERATURE_ONE, Result
from nextn.runtime.contract.errors import ArtifactError
from nextn.runtime.contract.golden_format import GoldenRun, GoldenScript
from nextn.runtime.contract.graph_spec import StateSpec
from nextn.runtime.selftest.golden_runs import Check, selftest
from nextn.runtime.selftest.state_rows import row_sums
from tests.runtime.echo_artifact import EOS, RING, replace_golden

ArtifactMaker = Callable[..., Path]
Tensors = dict[str, npt.NDArray[Any]]

RUNS = (
    GoldenRun((1, 2, 3), 9, temperature=0, seed=0, ignore_eos=False, speculation=True),
    GoldenRun((4, 5, EOS), 9, temperature=TEMPERATURE_ONE // 2, seed=3, ignore_eos=True, speculation=True),
    GoldenRun(tuple(range(20)), 1, temperature=0, seed=0, ignore_eos=False, speculation=True),
    GoldenRun((4, 5, EOS), 9, temperature=0, seed=0, ignore_eos=False, speculation=False),
)
SCRIPT = GoldenScript(
    form.GOLDEN_FORMAT, token_margin=1e-4, state_rtol=1e-4, state_atol=1e-6, state=("ring",), runs=RUNS
)


def record(model: Model) -> Tensors:
    """Golden tensors by the words of the format's description."""
    tensors: Tensors = {}
    for index, run in enumerate(RUNS):
        with model.session(slots=1, speculation=run.speculation) as session:
            request = session.submit(
                run.prompt,
                max_new_tokens=run.max_new_tokens,
                temperature=run.temperature / TEMPERATURE_ONE,
                seed=run.seed,
                ignore_eos=run.ignore_eos,
            )
            blocks: list[list[int]] = []
            busy = True
            while busy:
                busy = session.turn()
                if len(session.result(request).accept_lens) > len(blocks):
                    blocks.append(session.state("result")[: Result.WIDTH * 8].cast("q").tolist())
            result = session.result(request)
            ring = np.frombuffer(session.state("ring").tobytes(), np.float32).astype(np.float64)
            rows = ring.reshape(-1, RING.row_width)[: RING.rows_per_slot]
        tensors[f"run{index}.tokens"] = np.array(result.tokens, np.int64)
        tensors[f"run{index}.margins"] = np.ones(len(result.tokens), np.float32)
        tensors[f"run{index}.accept_lens"] = np.array(result.accept_lens, np.int64)
        tensors[f"run{index}.blocks"] = np.array(blocks, np.int64).reshape(-1, Result.WIDTH)
        tensors[f"run{index}.state.ring"] = np.stack([rows.sum(1), np.abs(rows).sum(1)], 1)
    return tensors


@pytest.fixture
def golden(artifact: ArtifactMaker) -> Callable[..., Path]:
    """`golden(change)` -> artifact whose golden file holds the recording after `change(tensors)`."""

    def make(
        change: Callable[[Tensors], object] = lambda tensors: None, script: GoldenScript = SCRIPT
    ) -> Path:
        folder = artifact(batch_sizes=(1, 2, 3))
        with Model(folder) as model:
            tensors = record(model)
            change(tensors)
            replace_golden(folder, model.manifest, save(tensors, metadata=form.script_metadata(script)))
        return folder

    return make


def checks_of(folder: Path) -> dict[str, Check]:
    with Model(folder) as model:
        return {check.name: check for check in selftest(model)}


def failures_of(folder: Path) -> dict[str, str]:
    return {check.name: check.detail for check in checks_of(folder).values() if not check.passed}


def test_a_faithful_artifact_passes_every_check(golden: Callable[..., Path]) -> None:
    checks = checks_of(golden())
    assert all(check.passed for check in checks.values())
    assert list(checks)[:7] == [
        "run 0 (round) tokens",
        "run 0 (round) accept lens",
        "run 0 (round) result blocks",
        "run 0 (round) state",
        "run 0 (phases) tokens",
        "run 0 (phases) accept lens",
        "run 0 (phases) result blocks",
    ]
    assert "run 3 (decode) state" in checks
    together = [name for name in checks if "together" in name]
    assert together == [
        f"{batch} requests together ({graphs}) tokens"
        for batch in (2, 3)
        for graphs in ("round", "phases", "decode")
    ]


def test_a_wrong_token_is_named_and_ends_the_comparison_of_its_run(golden: Callable[..., Path]) -> None:
    def change(tensors: Tensors) -> None:
        tensors["run0.tokens"][4] = 77

    failures = failures_of(golden(change))
    assert failures["run 0 (round) tokens"] == "token 4: expected 77, found 2"
    assert failures["2 requests together (round) tokens"] == "run 0: token 4: expected 77, found 2"
    assert "run 0 (round) accept lens" not in checks_of(golden(change))


def test_a_near_tie_may_go_either_way(golden: Callable[..., Path]) -> None:
    def change(tensors: Tensors) -> None:
        tensors["run0.tokens"][4] = 77
        tensors["run0.margins"][4] = 5e-5

    checks = checks_of(golden(change))
    assert all(check.passed for check in checks.values())
    assert "near tie" in checks["run 0 (round) tokens"].detail


def drop_a_token(tensors: Tensors) -> None:
    tensors["run3.tokens"] = tensors["run3.tokens"][:-1]


def change_accept_lens(tensors: Tensors) -> None:
    tensors["run0.accept_lens"][2] = 1


def add_a_round(tensors: Tensors) -> None:
    tensors["run0.accept_lens"] = np.append(tensors["run0.accept_lens"], 1)


def change_position(tensors: Tensors) -> None:
    tensors["run1.blocks"][1, Result.POS.offset] += 1


def change_output(tensors: Tensors) -> None:
    tensors["run1.blocks"][1, Result.OUT.offset] += 1


def drop_a_block(tensors: Tensors) -> None:
    tensors["run1.blocks"] = tensors["run1.blocks"][1:]


def change_state(tensors: Tensors) -> None:
    tensors["run1.state.ring"][2, 0] += 1.0


def change_state_shape(tensors: Tensors) -> None:
    tensors["run1.state.ring"] = tensors["run1.state.ring"][1:]


def spoil_state(tensors: Tensors) -> None:
    tensors["run1.state.ring"][2, 1] = np.nan


@pytest.mark.parametrize(
    ("change", "check", "detail"),
    [
        (drop_a_token, "run 3 (decode) tokens", "expected 2 tokens, found 3"),
        (change_accept_lens, "run 0 (round) accept lens", "round 2: expected 1, found 3"),
        (add_a_round, "run 0 (round) accept lens", "expected 5 rounds, found 4"),
        (change_position, "run 1 (round) result blocks", "round 1: pos expected 7, found 6"),
        (change_output, "run 1 (round) result blocks", "round 1: out expected"),
        (drop_a_block, "run 1 (phases) result blocks", "expected 3 rounds, found 4"),
        (change_state, "run 1 (round) state", "ring row 2: sums expected"),
        (change_state_shape, "run 1 (round) state", "ring: expected (3, 2) sums, found (4, 2)"),
        (spoil_state, "run 1 (round) state", "ring row 2: sums expected"),
    ],
)
def test_each_difference_is_found(
    golden: Callable[..., Path], change: Callable[[Tensors], None], check: str, detail: str
) -> None:
    failures = failures_of(golden(change))
    assert failures[check].startswith(detail)


def test_sums_within_tolerance_pass(golden: Callable[..., Path]) -> None:
    def change(tensors: Tensors) -> None:
        tensors["run1.state.ring"] *= 1 + 1e-5

    assert not failures_of(golden(change))


def test_an_incomplete_golden_file_is_refused(golden: Callable[..., Path]) -> None:
    folder = golden(lambda tensors: tensors.pop("run1.margins"))
    with pytest.raises(ArtifactError, match="golden file cannot be read"):
        checks_of(folder)


def test_an_unknown_state_buffer_is_refused(golden: Callable[..., Path]) -> None:
    script = dataclasses.replace(SCRIPT, state=("ring", "other"))

    def change(tensors: Tensors) -> None:
        for index in range(len(RUNS)):
            tensors[f"run{index}.state.other"] = tensors[f"run{index}.state.ring"]

    folder = golden(change, script)
    with pytest.raises(ArtifactError, match="found other"):
        checks_of(folder)


def test_the_script_survives_its_file() -> None:
    assert form.parse_script(form.script_metadata(SCRIPT), "golden") == SCRIPT


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "no readable script"),
        ({form.SCRIPT_KEY: "{"}, "no readable script"),
        ({form.SCRIPT_KEY: "[]"}, "golden script refused"),
        ({form.SCRIPT_KEY: json.dumps({**dataclasses.asdict(SCRIPT), "format": "2"})}, "key format"),
    ],
)
def test_an_unreadable_script_is_refused(metadata: dict[str, str] | None, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        form.parse_script(metadata, "golden")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64"])
def test_row_sums_read_every_dtype(dtype: str) -> None:
    values = np.array(
        [[1.0, -2.0], [0.5, 4.0], [9.0, 9.0]] if dtype != "int64" else [[1, -2], [3, 4], [9, 9]]
    )
    if dtype == "bfloat16":
        raw = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        raw = values.astype(dtype)
    found = row_sums(memoryview(bytearray(raw.tobytes())), StateSpec("x", 2, 2, dtype))
    assert found.tolist() == [[row.sum(), np.abs(row).sum()] for row in values[:2]]
