"""Slots, batches, limits, EOS and metrics of a session, over graphs that hash instead of think."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import Build, Outcome
from .fake_artifact import CHUNK, EOS, MAX_SEQ_LEN, SLOTS, VOCAB, expected_accept_lens, expected_tokens

UNFINISHED, STOP, LENGTH, ABORT = range(4)
OK, USAGE, ARTIFACT, RUNTIME, INTERRUPTED = 0, 2, 4, 5, 130

MODES: dict[str, dict[str, bool]] = {
    "round": {},
    "phases": {"phases": True},
    "plain": {"speculation": False},
}

REQUESTS: list[dict[str, Any]] = [
    {"prompt": [1, 2, 3], "max_new_tokens": 20},
    {"prompt": list(range(20)), "max_new_tokens": 1},
    {"prompt": [9] * 33, "max_new_tokens": 100},
    {"prompt": [4], "max_new_tokens": 7, "ignore_eos": True},
    {"prompt": [7, 7, 8, 60], "max_new_tokens": 40, "seed": 12345, "ignore_eos": True},
    {"prompt": [30] * CHUNK, "max_new_tokens": 11, "temperature": 0.75},
    {"prompt": [31] * (2 * CHUNK), "max_new_tokens": 30, "seed": 2**40},
    {"prompt": [0] * (MAX_SEQ_LEN - 1), "max_new_tokens": 9},
    {"prompt": [2, 4], "max_new_tokens": 50, "ignore_eos": True},
]


def opening(artifact: Path, fake_torch: str, **session: Any) -> list[tuple[str, Outcome]]:
    return [
        ("open", {"artifact": str(artifact), "torch_library": fake_torch}),
        ("create", session),
    ]


def wanted_tokens(request: dict[str, Any]) -> list[int]:
    fields = dict(request)
    room = MAX_SEQ_LEN - len(fields["prompt"])
    fields["max_new_tokens"] = min(fields["max_new_tokens"], room)
    return expected_tokens(**fields)


def run_all(
    build: Build, artifact: Path, fake_torch: str, **session: Any
) -> tuple[list[Outcome], Outcome, Outcome]:
    """Results of REQUESTS, the metrics, and the outcome of the run."""
    outcomes = build.host(
        *opening(artifact, fake_torch, **session),
        *[("submit", request) for request in REQUESTS],
        ("run", {}),
        *[("result", {"identifier": i + 1}) for i in range(len(REQUESTS))],
        ("metrics", {}),
    )
    assert [outcome["status"] for outcome in outcomes[:-1]] == [OK] * (len(outcomes) - 1), outcomes
    return outcomes[-1 - len(REQUESTS) : -1], outcomes[-1], outcomes[2 + len(REQUESTS)]


@pytest.mark.parametrize("slots", [0, 1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_tokens_do_not_depend_on_mode_or_company(
    build: Build, artifact: Path, fake_torch: str, mode: str, slots: int
) -> None:
    results, metrics, run = run_all(build, artifact, fake_torch, slots=slots, **MODES[mode])
    steps = 0 if mode == "plain" else 3
    for number, (request, result) in enumerate(zip(REQUESTS, results, strict=True)):
        tokens = wanted_tokens(request)
        assert result["tokens"] == tokens
        stopped = tokens[-1] == EOS and not request.get("ignore_eos")
        assert result["finish_reason"] == (STOP if stopped else LENGTH)
        assert result["accept_lens"] == expected_accept_lens(request["prompt"], tokens, steps)
        assert result["prompt_tokens"] == len(request["prompt"])
        assert 0 < result["ttft_ms"] <= result["e2e_ms"]
        streamed = [token for id, part in run["events"] if id == number + 1 for token in part]
        assert streamed == tokens
    check_metrics(metrics, results, mode)


def check_metrics(metrics: Outcome, results: list[Outcome], mode: str) -> None:
    lens = [length for result in results for length in result["accept_lens"]]
    assert metrics["num_row_rounds"] == len(lens)
    assert metrics["num_accepted"] == sum(lens) - len(lens)
    assert metrics["accepted_at_least"] == [sum(length > i + 1 for length in lens) for i in range(8)]
    prefills = sum(-(-result["prompt_tokens"] // CHUNK) for result in results)
    seeded = 0 if mode == "plain" else sum(bool(result["accept_lens"]) for result in results)
    assert metrics["num_prefill_launches"] == prefills
    assert metrics["num_draft_forwards_prefill"] == 3 * seeded
    rounds = metrics["num_rounds"]
    assert metrics["num_draft_forwards_extend"] == (0 if mode == "plain" else rounds)
    assert metrics["num_draft_forwards_step"] == (0 if mode == "plain" else 2 * rounds)
    launches_per_round = 5 if mode == "phases" else 1
    assert metrics["num_graph_launches"] == prefills + seeded + launches_per_round * rounds
    assert metrics["prefill_ms"] > 0 and metrics["decode_ms"] > 0


def test_one_chunk_and_one_round_a_turn(build: Build, artifact: Path, fake_torch: str) -> None:
    """A long prompt advances by one chunk a turn, and the other request by one round in the same turn."""
    prompt = [3] * (3 * CHUNK)
    outcomes = build.host(
        *opening(artifact, fake_torch),
        ("submit", {"prompt": [1, 2], "max_new_tokens": 60, "ignore_eos": True}),
        ("submit", {"prompt": prompt, "max_new_tokens": 60, "ignore_eos": True}),
        *[step for _ in range(5) for step in (("turn", {}), ("metrics", {}), ("result", {"identifier": 2}))],
    )
    turns, metrics, second = (outcomes[4 + i :: 3] for i in range(3))
    assert all(turn["busy"] for turn in turns)
    assert [entry["num_prefill_launches"] for entry in metrics] == [1, 2, 3, 4, 4]
    assert [entry["num_rounds"] for entry in metrics] == [1, 2, 3, 4, 5]
    assert [entry["num_row_rounds"] for entry in metrics] == [1, 2, 3, 5, 7]
    assert [len(result["tokens"]) > 0 for result in second] == [False, False, False, True, True]
    assert [result["finish_reason"] for result in second] == [UNFINISHED] * 5


def test_batch_is_the_smallest_that_fits(build: Build, artifact: Path, fake_torch: str) -> None:
    """With three live rows the batch is 4, and its last row the scratch slot."""
    outcomes = build.host(
        *opening(artifact, fake_torch, slots=3),
        *[("submit", {"prompt": [i], "max_new_tokens": 60, "ignore_eos": True}) for i in range(3)],
        *[("turn", {})] * 3,
        ("state", {"name": "result"}),
        ("state", {"name": "control"}),
        ("state", {"name": "slots_b4"}),
        ("state", {"name": "no_such_buffer"}),
    )
    result, control, slots, unknown = (outcome["words"] for outcome in outcomes[-4:])
    scratch_result, scratch_control = result[SLOTS * 16 :], control[SLOTS * 32 :]
    assert scratch_result[10] == -1, "the scratch row was replayed as a finished one"
    assert scratch_control[3] == 1 and scratch_control[11:19] == [-1] * 8
    assert slots is None and unknown is None, "only state buffers are shown"


def test_results_in_order_of_completion(build: Build, artifact: Path, fake_torch: str) -> None:
    lengths = [30, 2, 9, 1, 4]
    outcomes = build.host(
        *opening(artifact, fake_torch),
        *[
            ("submit", {"prompt": [i], "max_new_tokens": n, "ignore_eos": True})
            for i, n in enumerate(lengths)
        ],
        ("run", {}),
        ("release", {"identifier": 5}),
        ("finished", {}),
        ("finished", {}),
        ("result", {"identifier": 5}),
        ("result", {"identifier": 2}),
    )
    order, again, released, kept = outcomes[-4:]
    # All at most four tokens a round; request 5 waits for a slot and was released before it was asked for.
    assert order["ids"] == [2, 4, 3, 1]
    assert again["ids"] == []
    assert released["status"] == USAGE and "no request has id 5" in released["error"]
    assert len(kept["tokens"]) == 2


def test_run_until_finished(build: Build, artifact: Path, fake_torch: str) -> None:
    """Each call ends as the next request does; the rounds are those of one whole run."""
    requests = [
        ("submit", {"prompt": [i], "max_new_tokens": n, "ignore_eos": True}) for i, n in enumerate([30, 2, 9])
    ]
    step: list[tuple[str, Outcome]] = [("run_until_finished", {}), ("finished", {})]
    outcomes = build.host(
        *opening(artifact, fake_torch),
        *requests,
        *step * 3,
        ("metrics", {}),
        *opening(artifact, fake_torch),
        *[(name, {**fields, "on": 1}) for name, fields in requests],
        ("run", {"on": 1}),
        ("metrics", {"on": 1}),
        ("run_until_finished", {}),
        ("interrupt", {}),
        ("run_until_finished", {}),
    )
    assert [outcome["busy"] for outcome in outcomes[5:11:2]] == [True, True, False]
    assert [outcome["ids"] for outcome in outcomes[6:11:2]] == [[2], [3], [1]]
    counters = ("num_rounds", "num_row_rounds", "num_graph_launches")
    assert all(outcomes[11][name] == outcomes[-4][name] > 0 for name in counters)
    idle, _, interrupted = outcomes[-3:]
    assert (idle["status"], idle["busy"]) == (OK, False), "nothing to do is no error"
    assert (interrupted["status"], interrupted["busy"]) == (INTERRUPTED, False)


def test_callback_aborts_one_request(build: Build, artifact: Path, fake_torch: str) -> None:
    request = {"max_new_tokens": 20, "ignore_eos": True}
    outcomes = build.host(
        *opening(artifact, fake_torch, slots=1),
        *[("submit", dict(request, prompt=[i])) for i in range(3)],
        ("run", {"abort": 2}),
        *[("result", {"identifier": i + 1}) for i in range(3)],
    )
    run, *results = outcomes[5:]
    assert run["status"] == OK
    assert [result["finish_reason"] for result in results] == [LENGTH, ABORT, LENGTH]
    assert len(results[1]["tokens"]) == 1
    assert results[2]["tokens"] == expected_tokens([2], 20, ignore_eos=True), "the slot is as good as new"


def test_interrupt_keeps_finished_results(build: Build, artifact: Path, fake_torch: str) -> None:
    outcomes = build.host(
        *opening(artifact, fake_torch),
        ("submit", {"prompt": [1], "max_new_tokens": 1}),
        ("submit", {"prompt": [2], "max_new_tokens": 50, "ignore_eos": True}),
        ("run", {"interrupt_after": 4}),
        ("result", {"identifier": 1}),
        ("result", {"identifier": 2}),
        ("submit", {"prompt": [3], "max_new_tokens": 5, "ignore_eos": True}),
        ("run", {}),
        ("result", {"identifier": 3}),
        ("interrupt", {}),
        ("run", {}),
    )
    run, first, second, _, again, third, _, idle = outcomes[4:]
    assert run["status"] == INTERRUPTED and run["error"] == "interrupted"
    assert first["finish_reason"] == LENGTH
    assert second["finish_reason"] == ABORT and second["tokens"]
    assert again["status"] == OK and third["tokens"] == expected_tokens([3], 5, ignore_eos=True)
    assert idle["status"] == INTERRUPTED, "an interrupt just before a run is not lost"


def test_session_is_not_reentrant(build: Build, artifact: Path, fake_torch: str) -> None:
    outcomes = build.host(
        *opening(artifact, fake_torch),
        ("submit", {"prompt": [1], "max_new_tokens": 5}),
        ("run", {"misuse": True}),
    )
    run = outcomes[-1]
    assert run["status"] == OK
    assert run["misuse"] and set(run["misuse"]) == {USAGE}
    assert run["events"], "the session outlived its own destruction in a callback"


@pytest.mark.parametrize("num_steps", [0, 1, 2, 8])
def test_any_number_of_steps(build: Build, make_artifact: Any, fake_torch: str, num_steps: int) -> None:
    request = {"prompt": [6, 6], "max_new_tokens": 25, "ignore_eos": True}
    modes: list[dict[str, bool]] = [{}, {"phases": True}] if num_steps else [{}]
    for mode in modes:
        outcomes = build.host(
            *opening(make_artifact(num_steps), fake_torch, **mode),
            ("submit", request),
            ("run", {}),
            ("result", {"identifier": 1}),
        )
        result = outcomes[-1]
        assert result["tokens"] == expected_tokens([6, 6], 25, ignore_eos=True)
        assert result["accept_lens"] == expected_accept_lens([6, 6], result["tokens"], num_steps)


def test_round_times(build: Build, artifact: Path, fake_torch: str) -> None:
    outcomes = build.host(
        *opening(artifact, fake_torch, phases=True, round_samples=4),
        ("submit", {"prompt": [1], "max_new_tokens": 30, "ignore_eos": True}),
        ("run", {}),
        ("round_times", {"capacity": 100}),
        ("round_times", {"capacity": 3}),
        ("metrics", {}),
    )
    kept, fewer, metrics = outcomes[-3:]
    assert metrics["num_rounds"] > 4 and len(kept["rounds"]) == 4
    assert fewer["rounds"] == kept["rounds"][:3]
    for entry in kept["rounds"]:
        phases = sum(entry[name] for name in ("verify_us", "accept_us", "extend_us", "step_us"))
        assert entry["graph_us"] == pytest.approx(phases, rel=1e-4)
        assert entry["graph_us"] > 0 and entry["host_us"] >= 0


BAD_REQUESTS: list[tuple[Outcome, str]] = [
    ({"prompt": None}, "request.prompt is NULL"),
    ({"prompt": []}, f"request.prompt_length is 0, allowed: 1 .. {MAX_SEQ_LEN - 1}"),
    ({"prompt": [1] * MAX_SEQ_LEN}, f"request.prompt_length is {MAX_SEQ_LEN}"),
    ({"prompt": [1, -1]}, "request.prompt[1] is -1, allowed: 0 .. 60"),
    ({"prompt": [VOCAB]}, "request.prompt[0] is 61"),
    ({"prompt": [2**32 + 1]}, "request.prompt[0] is 4294967297"),
    ({"max_new_tokens": 0}, "request.max_new_tokens is 0"),
    ({"max_new_tokens": -(2**63)}, "request.max_new_tokens is -9223372036854775808"),
    ({"seed": -1}, "request.seed is -1"),
    ({"temperature": -0.5}, "request.temperature is -0.5"),
    ({"temperature": 2048.0}, "request.temperature is 2048, allowed: 0 up to, not including, 2048"),
    ({"temperature": float("nan")}, "request.temperature is "),
    ({"temperature": float("inf")}, "request.temperature is inf"),
    ({"top_p": 0.9}, "request.top_p is 0.9, allowed: 1"),
    ({"top_p": float("nan")}, "request.top_p is "),
    ({"min_p": 0.1}, "request.min_p is 0.1"),
    ({"top_k": 40}, "request.top_k is 40, allowed: 0"),
    ({"struct_size": 0}, "request.struct_size is 0"),
    ({"struct_size": 4096}, "request.struct_size is 4096"),
]


def test_bad_requests(build: Build, artifact: Path, fake_torch: str) -> None:
    outcomes = build.host(
        *opening(artifact, fake_torch),
        *[("submit", {"prompt": [1], **fields}) for fields, _ in BAD_REQUESTS],
        ("submit", {"prompt": [1], "max_new_tokens": 2, "ignore_eos": True}),
        ("run", {}),
        ("result", {"identifier": 1}),
    )
    for (_, text), outcome in zip(BAD_REQUESTS, outcomes[2:-3], strict=True):
        assert outcome["status"] == USAGE and text in outcome["error"]
    assert len(outcomes[-1]["tokens"]) == 2, "the session stays usable"


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"slots": SLOTS + 1}, "slots is 5, allowed: 0 .. 4"),
        ({"slots": -1}, "slots is -1"),
        ({"round_samples": -1}, "round_samples is -1"),
        ({"speculation": False, "phases": True}, "phases is true"),
        ({"struct_size": 3}, "session_params.struct_size is 3"),
    ],
)
def test_bad_session_params(
    build: Build, artifact: Path, fake_torch: str, params: Outcome, text: str
) -> None:
    created = build.host(*opening(artifact, fake_torch, **params))[1]
    assert created["status"] == USAGE and text in created["error"] and not created["made"]


def test_limits_are_in_the_request_not_the_batch(build: Build, artifact: Path, fake_torch: str) -> None:
    """INT64_MAX new tokens is clipped to what the artifact's max_seq_len leaves."""
    outcomes = build.host(
        *opening(artifact, fake_torch),
        ("submit", {"prompt": [1] * 60, "max_new_tokens": 2**63 - 1, "ignore_eos": True}),
        ("run", {}),
        ("result", {"identifier": 1}),
    )
    assert outcomes[-1]["finish_reason"] == LENGTH
    assert len(outcomes[-1]["tokens"]) == MAX_SEQ_LEN - 60


def test_null_arguments(build: Build) -> None:
    assert build.host(("null_arguments", {}))[0]["statuses"] == [USAGE] * 7
