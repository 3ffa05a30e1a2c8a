"""`nextn-run` over the echo executor: streams, JSON, exit codes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nextn.runtime.contract.version import VERSION
from tests.runtime.conftest import CommandResult
from tests.runtime.echo_artifact import EOS, damage_weights

ArtifactMaker = Callable[..., Path]
Run = Callable[..., CommandResult]


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_text_goes_to_stdout_and_figures_to_stderr(artifact: ArtifactMaker, nextn_run: Run) -> None:
    result = nextn_run(artifact(), "--prompt", "héllo ", "--max-new-tokens", 10)
    assert (result.code, result.out) == (0, "héllo hé\n")
    for label in ("tokens/s", "ttft", "rounds", "mean acceptance length   2.50", "0.75 0.50 0.25"):
        assert label in result.err


def test_streamed_text_is_the_same(artifact: ArtifactMaker, nextn_run: Run) -> None:
    result = nextn_run(artifact(), "--prompt", "日本 ", "--max-new-tokens", 20, "--stream")
    assert (result.code, result.out) == (0, "日本 日本 日本\n")


def test_a_prompt_file_is_used_as_it_is(artifact: ArtifactMaker, nextn_run: Run, tmp_path: Path) -> None:
    (tmp_path / "prompt").write_text("a\n")
    result = nextn_run(artifact(), "--prompt-file", tmp_path / "prompt", "--max-new-tokens", 3)
    assert result.out == "a\na\n"


def test_json_has_one_object_per_request_and_a_summary(artifact: ArtifactMaker, nextn_run: Run) -> None:
    result = nextn_run(artifact(), "--token-ids", f"65, 66,{EOS}", "--max-new-tokens", 9, "--json")
    completion, summary = result.objects
    metrics = completion.pop("metrics")
    assert completion == {
        "id": 1,
        "prompt_tokens": 3,
        "token_ids": [65, 66, EOS],
        "text": "AB",
        "finish_reason": "stop",
        "accept_lens": [1, 2],
    }
    assert metrics["mean_acceptance_length"] == 1.5
    assert math.isclose(metrics["draft_acceptance_rate"], 0.5 / 3)
    assert metrics["acceptance_rate_per_position"] == [0.5, 0, 0]
    assert set(metrics) >= {"num_rounds", "ttft_ms", "tpot_ms", "e2e_ms"}
    figures = summary["summary"]
    assert figures["num_draft_forwards"] == {"extend": 2, "step": 4, "prefill": 3}
    assert (figures["num_graph_launches"], figures["generated_tokens"]) == (4, 3)
    assert set(figures["host_us"]) == set(figures["ttft_ms"]) == {"p50", "p99"}
    assert result.err == ""


def test_json_is_null_where_nothing_was_measured(artifact: ArtifactMaker, nextn_run: Run) -> None:
    completion, summary = nextn_run(artifact(), "--token-ids", "65", "--max-new-tokens", 1, "--json").objects
    assert completion["accept_lens"] == []
    for figures in (completion["metrics"], summary["summary"]):
        assert figures["mean_acceptance_length"] is None
        assert figures["draft_acceptance_rate"] is None
        assert figures["acceptance_rate_per_position"] is None


def test_json_stream_prints_deltas_before_the_completion(artifact: ArtifactMaker, nextn_run: Run) -> None:
    *deltas, completion, summary = nextn_run(
        artifact(), "--prompt", "é!", "--max-new-tokens", 5, "--json", "--stream"
    ).objects
    assert all(set(delta) == {"id", "delta"} for delta in deltas)
    assert "".join(delta["delta"]["text"] for delta in deltas) == completion["text"] == "é!é"
    assert [token for delta in deltas for token in delta["delta"]["token_ids"]] == completion["token_ids"]
    assert "summary" in summary


def test_stop_strings_can_be_repeated(artifact: ArtifactMaker, nextn_run: Run) -> None:
    result = nextn_run(artifact(), "--prompt", "lazydog", "--stop", "zz", "--stop", "azyd", "--json")
    assert result.objects[0]["text"] == "l"
    assert result.objects[0]["token_ids"] == list(b"lazyd")
    assert result.objects[0]["finish_reason"] == "stop"


def test_ignored_eos_and_sampling_reach_the_session(artifact: ArtifactMaker, nextn_run: Run) -> None:
    arguments = ["--token-ids", f"65,{EOS}", "--max-new-tokens", 3, "--ignore-eos", "--json"]
    assert nextn_run(artifact(), *arguments).objects[0]["token_ids"] == [65, EOS, 65]
    sampled = nextn_run(artifact(), *arguments, "--temperature", "0.5", "--seed", 2)
    assert sampled.objects[0]["token_ids"] == [67, EOS + 2, 67]


def test_plain_decoding_and_phases(artifact: ArtifactMaker, nextn_run: Run) -> None:
    arguments = [artifact(), "--prompt", "a", "--max-new-tokens", 4, "--json"]
    assert nextn_run(*arguments, "--no-speculation").objects[0]["accept_lens"] == [1, 1, 1]
    assert "verify_us" in nextn_run(*arguments, "--phases").objects[1]["summary"]


def test_without_a_tokenizer_ids_are_printed(artifact: ArtifactMaker, nextn_run: Run) -> None:
    arguments = [artifact(tokenizer=False), "--token-ids", "7,8", "--max-new-tokens", 4]
    assert nextn_run(*arguments).out == "7,8,7,8\n"
    assert nextn_run(*arguments, "--stream").out == "7,8,7,8\n"
    assert nextn_run(*arguments, "--json").objects[0]["text"] is None


def test_bad_lines_fail_alone(artifact: ArtifactMaker, nextn_run: Run, tmp_path: Path) -> None:
    requests = write_lines(
        tmp_path / "requests.jsonl",
        {"prompt": "ab"},
        "not json",
        "",
        {"id": "bad", "token_ids": [1, -1]},
        {"id": "good", "token_ids": [67], "max_new_tokens": 2},
        {"prompt": "x", "messages": []},
        {"messages": [{"role": "user", "content": "hi"}]},
    )
    result = nextn_run(artifact(), "--requests", requests, "--max-new-tokens", 5, "--json")
    assert result.code == 2
    *completions, summary = result.objects
    assert [entry["id"] for entry in completions] == [2, "bad", 6, 7, "good", 1]
    bad, good, first = completions[1], completions[4], completions[5]
    assert (bad["finish_reason"], bad["text"], bad["error"]["code"]) == ("error", None, 2)
    assert "token_ids[1], expected an integer in 0..299, found -1" in bad["error"]["message"]
    assert (good["text"], first["text"]) == ("CC", "ababa")
    assert "chat messages are not in this build" in completions[3]["error"]["message"]
    assert (summary["summary"]["num_requests"], summary["summary"]["num_refused"]) == (2, 4)
    assert [line.split(":")[2] for line in result.err.splitlines()] == [
        " request 2",
        " request bad",
        " request 6",
        " request 7",
    ]


def test_an_id_belongs_to_the_first_line_that_has_it(
    artifact: ArtifactMaker, nextn_run: Run, tmp_path: Path
) -> None:
    """A repeated one fails under its line number: its result would pass for that of the other."""
    requests = write_lines(
        tmp_path / "r",
        {"id": "x", "token_ids": [65]},
        {"id": "x", "token_ids": [66]},
        {"id": 4, "token_ids": [67]},
        {"token_ids": [68]},
        {"id": "4", "token_ids": [69]},
    )
    result = nextn_run(artifact(), "--requests", requests, "--max-new-tokens", 1, "--json")
    assert result.code == 2
    texts = [(entry["id"], entry["text"]) for entry in result.objects[:-1]]
    assert texts == [(2, None), (4, None), ("x", "A"), (4, "C"), ("4", "E")]
    assert "request 2: bad request (key id, expected an id of its own, found " in result.err


def test_several_texts_are_headed_by_their_ids(
    artifact: ArtifactMaker, nextn_run: Run, tmp_path: Path
) -> None:
    requests = write_lines(tmp_path / "r", {"prompt": "ab", "max_new_tokens": 3}, {"id": "x", "prompt": "c"})
    result = nextn_run(artifact(), "--requests", requests, "--max-new-tokens", 9)
    assert (result.code, result.out) == (0, "==> 1 <==\naba\n==> x <==\nccccccccc\n")


def test_a_file_with_a_byte_order_mark_and_no_last_newline(
    artifact: ArtifactMaker, nextn_run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "r"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}')
    result = nextn_run(artifact(), "--requests", path, "--max-new-tokens", 2)
    assert result.code == 0


def test_requests_can_outnumber_slots(artifact: ArtifactMaker, nextn_run: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r", *({"token_ids": [n], "max_new_tokens": n % 5 + 1} for n in range(40)))
    *completions, _ = nextn_run(artifact(), "--requests", path, "--json").objects
    assert sorted(entry["id"] for entry in completions) == list(range(1, 41))
    for entry in completions:
        assert entry["token_ids"] == [entry["id"] - 1] * ((entry["id"] - 1) % 5 + 1)


def test_info(artifact: ArtifactMaker, nextn_run: Run) -> None:
    text = nextn_run(artifact(), "--info")
    assert "draft steps k        3\n" in text.out
    assert "batch sizes          1 2\n" in text.out
    (value,) = nextn_run(artifact(), "--info", "--json").objects
    assert value["info"]["speculation"] == {"num_steps": 3, "num_draft_tokens": 4}
    assert value["info"]["state_bytes"] == 3 * (32 * 8 + 16 * 8 + 4 * 8 * 4)


def test_verify_weights(artifact: ArtifactMaker, nextn_run: Run) -> None:
    folder = artifact()
    size = (folder / "weights.safetensors").stat().st_size
    assert nextn_run(folder, "--verify-weights").out == f"weights verified: {size} bytes\n"
    (value,) = nextn_run(folder, "--verify-weights", "--json").objects
    assert value == {"verify_weights": {"passed": True, "bytes": size}}
    damage_weights(folder)
    damaged = nextn_run(folder, "--verify-weights")
    assert damaged.code == 4
    assert damaged.err.startswith("nextn-run: error: weights were changed (file ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to run"),
        (["--prompt", "a", "--info"], "found --info and --prompt"),
        (["--prompt", "a", "--token-ids", "1"], "found --prompt and --token-ids"),
        (["--prompt"], "argument --prompt"),
        (["--prompt", "a", "--max-new", "3"], "unrecognized arguments"),
        (
            ["--prompt", "a", "--max-new-tokens", "0"],
            "--max-new-tokens: bad value (expected an integer of at least 1",
        ),
        (["--prompt", "a", "--max-new-tokens", "1.5"], "--max-new-tokens: invalid int value"),
        (["--prompt", "a", "--temperature", "nan"], "--temperature: bad value"),
        (["--prompt", "a", "--temperature", "-1e3"], "--temperature: bad value"),
        (["--prompt", "a", "--seed", "-1"], "--seed: bad value"),
        (["--prompt", "a", "--stop", ""], "--stop: bad value"),
        (["--prompt", "a", "--top-k", "5"], "--top-k: top-k sampling is not in this build"),
        (["--prompt", "a", "--top-p", "0.9"], "--top-p: top-p sampling is not in this build"),
        (["--prompt", "a", "--min-p", "0.1"], "--min-p: min-p sampling is not in this build"),
        (["--prompt", "a", "--logprobs", "1"], "--logprobs: logprobs is not in this build"),
        (["--prompt", "a", "--executor", "onnxruntime"], "expected native, found onnxruntime"),
        (["--prompt", "a", "--device", "npu"], "expected cpu, found npu"),
        (["--info", "--device", "cuda"], "expected cpu, found cuda"),
        (["--prompt", "a", "--bench"], "--bench is not in this build"),
        (["--prompt", "a", "--phases", "--no-speculation"], "--phases"),
        (["--requests", "-", "--stream"], "--stream of several requests needs --json"),
        (["--requests", "/nonexistent"], "file cannot be read"),
        (["--prompt-file", "/nonexistent"], "file cannot be read"),
        (["--token-ids", "-1,2"], "token_ids[0], expected an integer in 0..299, found -1"),
        (["--token-ids", "1,300"], "token_ids[1], expected an integer in 0..299, found 300"),
        (["--token-ids", "2147483648"], "found 2147483648"),
        (["--token-ids", "1,2.0"], "token_ids[1], expected an integer, found 2.0"),
        (["--token-ids", "1,true"], "found true"),
        (["--token-ids", ""], "found 0 tokens"),
        (["--prompt", ""], "key prompt, expected at least 1 character"),
        (["--prompt", "x" * 512], "expected 1..511 tokens, found 512 tokens"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    artifact: ArtifactMaker, nextn_run: Run, arguments: list[Any], message: str
) -> None:
    result = nextn_run(artifact(), *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("nextn-run: error: ")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_defaults_may_be_spelled_out(artifact: ArtifactMaker, nextn_run: Run) -> None:
    spelled = [
        "--top-k",
        0,
        "--top-p",
        1,
        "--min-p",
        0,
        "--logprobs",
        0,
        "--executor",
        "native",
        "--device",
        "cpu",
    ]
    assert nextn_run(artifact(), "--prompt", "a", *spelled).code == 0


def test_no_artifact_is_a_usage_error(nextn_run: Run) -> None:
    assert nextn_run("--prompt", "a").code == 2


def test_a_missing_artifact_exits_4(nextn_run: Run, tmp_path: Path) -> None:
    result = nextn_run(tmp_path / "absent", "--prompt", "a")
    assert result.code == 4
    assert result.err.count("\n") == 1


def test_a_failing_graph_exits_5_with_a_traceback_only_for_debug(
    artifact: ArtifactMaker, nextn_run: Run
) -> None:
    arguments = [artifact(fails="round.b1"), "--prompt", "a"]
    result = nextn_run(*arguments)
    assert (result.code, result.err) == (5, "nextn-run: error: graph round.b1 failed\n")
    assert "Traceback" in nextn_run(*arguments, "--debug").err


def test_an_internal_error_is_one_line(
    artifact: ArtifactMaker, nextn_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nextn.runtime.cli.command.load", lambda *args, **options: 1 / 0)
    result = nextn_run(artifact(), "--prompt", "a")
    assert result.code == 5
    assert result.err.startswith("nextn-run: error: internal error: ZeroDivisionError")


@pytest.mark.parametrize(
    ("flag", "start"), [("--version", f"nextn-run {VERSION}\n"), ("--help", "usage: nextn-run")]
)
def test_version_and_help(nextn_run: Run, capsys: pytest.CaptureFixture[str], flag: str, start: str) -> None:
    with pytest.raises(SystemExit) as caught:
        nextn_run(flag)
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(start)
