"""What `--dry-run` says of graph capture, counted by hand from the graphs of each kind of session."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from nextn.compile.cli import main
from nextn.compile.targets.ascend.limits import CaptureLimits, capture_limits
from nextn.compile.targets.pt2.capture_plan import plan_captures
from nextn.graphs.phases import SEPARATE_PHASES
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.errors import ExitCode, UsageError
from nextn.weights.config_json import parse_model_config
from tests.oracles.synthetic import CASES

A_950 = "Ascend950PR_9579"


@pytest.fixture(scope="module")
def shape_of() -> Callable[..., SessionShape]:
    config, _ = parse_model_config(CASES["tiny"].config, "config.json")

    def shape(num_steps: int, num_sizes: int) -> SessionShape:
        sizes = tuple(range(1, num_sizes + 1))
        return SessionShape(config, num_steps=num_steps, batch_sizes=sizes, max_seq_len=64)

    return shape


@pytest.mark.parametrize(
    ("num_steps", "num_sizes", "rounds", "phases", "plain"),
    [
        (3, 2, 2 + 2, 2 + 2 * 4, 1 + 2),  # prefill, seed; verify, accept, extend, step
        (1, 3, 2 + 3, 2 + 3 * 3, 1 + 3),  # one draft needs no step
        (0, 2, 0, 0, 1 + 2),
    ],
)
def test_counts(shape_of, num_steps: int, num_sizes: int, rounds: int, phases: int, plain: int) -> None:
    plan, built = plan_captures(shape_of(num_steps, num_sizes), None, None)
    assert (plan.round_graphs, plan.phases_graphs, plan.plain_graphs) == (rounds, phases, plain)
    assert plan.streams == max(rounds, phases, plain) + 2
    assert plan.capture_sizes == num_sizes
    assert plan.limits is None and plan.left_out is None
    assert len(built) == (0 if num_steps == 0 else 1) + 1 + num_sizes * {0: 1, 1: 5, 3: 6}[num_steps]


@pytest.mark.parametrize(("graphs", "streams"), [(9, 100), (100, 11)])
def test_phases_beyond_a_limit_are_left_out(shape_of, graphs: int, streams: int) -> None:
    """Ten graphs of separate phases, by either limit; with one more of it they fit."""
    plan, built = plan_captures(shape_of(3, 2), "chip", CaptureLimits("X", graphs, streams, None))
    assert (plan.round_graphs, plan.phases_graphs, plan.streams) == (4, 0, 6)
    assert plan.left_out == "10 graphs of separate phases are more than an Ascend X holds"
    assert not [name for name, _ in built if name in SEPARATE_PHASES]
    assert [name for name, _ in built] == ["prefill", "seed", "decode", "round", "decode", "round"]
    plan, built = plan_captures(shape_of(3, 2), "chip", CaptureLimits("X", graphs + 1, streams + 1, None))
    assert plan.phases_graphs == 10 and plan.left_out is None and len(built) == 14


@pytest.mark.parametrize(
    ("num_steps", "batch_sizes", "sizes"),
    [
        (3, (1,), {4, 1}),
        (3, (1, 4), {4, 16, 1}),  # a window of one request has as many rows as a step of four
        (2, (1, 2), {3, 6, 1, 2}),
        (1, (1, 2, 3, 4), {2, 4, 6, 8}),  # no step
    ],
)
def test_sizes_that_a_950_captures(
    shape_of, num_steps: int, batch_sizes: tuple[int, ...], sizes: set[int]
) -> None:
    shape = dataclasses.replace(shape_of(num_steps, 1), batch_sizes=batch_sizes)
    plan, built = plan_captures(shape, A_950, capture_limits(A_950))
    assert (plan.capture_sizes, plan.phases_capture_sizes) == (len(batch_sizes), len(sizes))
    assert plan.left_out is None and "verify" in {name for name, _ in built}


@pytest.mark.parametrize(
    ("num_steps", "batch_sizes", "sizes"), [(3, (1, 2, 4), 5), (2, (1, 2, 4), 6), (3, (1, 2, 3, 4), 7)]
)
def test_a_950_captures_rounds_where_phases_have_too_many_sizes(
    shape_of, num_steps: int, batch_sizes: tuple[int, ...], sizes: int
) -> None:
    shape = dataclasses.replace(shape_of(num_steps, 1), batch_sizes=batch_sizes)
    plan, built = plan_captures(shape, A_950, capture_limits(A_950))
    assert plan.left_out == f"separate phases have {sizes} sizes, and an Ascend 950 captures 4"
    assert (plan.capture_sizes, plan.phases_capture_sizes) == (len(batch_sizes), 0)
    assert (plan.phases_graphs, plan.round_graphs) == (0, 2 + len(batch_sizes))
    assert {name for name, _ in built} == {"prefill", "seed", "decode", "round"}


def test_the_command_says_so_of_a_950(capsys: pytest.CaptureFixture[str]) -> None:
    """Four batch sizes are as many as it captures in any way."""
    command = ["demo", "--dry-run", "--device", "npu", "--soc", A_950, "--batch-sizes"]
    assert main([*command, "1,2,4,8"]) == 0
    out, err = capsys.readouterr()
    assert "--phases will be refused: separate phases have 6 sizes, and an Ascend 950 captures 4" in err
    assert "limit of Ascend 950" in out and "not built: separate phases have 6 sizes" in out
    assert main([*command, "1,2,4,8", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {graph["name"] for graph in plan["graphs"]} == {"prefill", "seed", "decode", "round"}
    assert main([*command, "1,2,4,8,16"]) == ExitCode.USAGE
    assert "on an Ascend 950 (expected at most 4, found 5)" in capsys.readouterr().err


def test_more_batch_sizes_than_a_chip_holds(shape_of) -> None:
    with pytest.raises(
        UsageError, match=r"graphs of so many sizes .* Ascend X \(expected at most 2, found 3"
    ):
        plan_captures(shape_of(3, 3), "chip", CaptureLimits("X", 100, 100, 2))
    with pytest.raises(UsageError, match=r"more graphs than an Ascend X holds \(expected at most 4, found 5"):
        plan_captures(shape_of(3, 3), "chip", CaptureLimits("X", 4, 100, None))


@pytest.mark.parametrize(
    ("soc", "chip", "sizes"),
    [("Ascend910B1", "910B", None), ("Ascend910_9391", "910C", None), (A_950, "950", 4)],
)
def test_known_chips(soc: str, chip: str, sizes: int | None) -> None:
    assert capture_limits(soc) == CaptureLimits(chip, 1920, 2048, sizes)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["demo", "--dry-run", "--device", "npu", "--soc", "Ascend910B1"]
    many = ["--batch-sizes", ",".join(map(str, range(1, 481)))]
    assert main([*arguments, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["dtype"] == "bfloat16" and plan["num_graphs"] == 8
    assert plan["capture"]["limits"] == {
        "chip": "910B",
        "graphs": 1920,
        "streams": 2048,
        "capture_sizes": None,
    }
    assert main([*arguments, *many]) == 0
    out, err = capsys.readouterr()
    assert "--phases will be refused: 1922 graphs of separate phases" in err
    assert "limit of Ascend 910B" in out and "not built: 1922 graphs" in out
    assert main(["demo", "--dry-run"]) == 0
    assert "graph capture" not in capsys.readouterr().out
