"""The same artifact through the command line, the Python face and a C++ host without Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import nextn
from nextn.runtime.contract.errors import ExitCode
from tests.commands import NEXTN_RUN
from tests.conftest import REPOSITORY, CompiledArtifacts
from tests.integration.conftest import build_host

PROMPT = "5,6,7,8,9,10,11"


def nextn_run(artifact: Path, *flags: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [NEXTN_RUN, str(artifact), *flags]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300)


def json_lines(done: subprocess.CompletedProcess[str]) -> list[dict]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    return build_host(REPOSITORY / "examples" / "generate.cpp", folder / "generate")


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_cpp_host_gives_the_tokens_of_the_command_line(
    speculative: Path, example: Path, temperature: str
) -> None:
    arguments = [str(example), str(speculative), PROMPT, "40", temperature, "3"]
    host = subprocess.run(arguments, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert host.returncode == ExitCode.OK, host.stderr
    flags = ("--token-ids", PROMPT, "--max-new-tokens", "40", "--temperature", temperature, "--seed", "3")
    line = json_lines(nextn_run(speculative, *flags, "--json"))[0]
    assert [int(token) for token in host.stdout.split(",")] == line["token_ids"]
    assert len(line["token_ids"]) == 40


def test_cpp_host_reports_errors_in_one_line(example: Path, tmp_path: Path) -> None:
    host = subprocess.run([str(example), str(tmp_path), "1"], capture_output=True, text=True)
    assert host.returncode == ExitCode.ARTIFACT
    assert len(host.stderr.splitlines()) == 1


def test_selftest_passes_on_every_bucket(speculative: Path) -> None:
    done = nextn_run(speculative, "--selftest")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert "PASS" in done.stdout


def test_requests_more_than_slots_with_bad_lines_among_them(speculative: Path) -> None:
    """The bad ones are named and cost exit code 2; every good one runs, whatever its company."""
    good = [{"id": f"r{i}", "token_ids": list(range(1, 2 + 7 * i)), "max_new_tokens": 12} for i in range(7)]
    bad = [
        {"id": "minus", "token_ids": [-1]},
        {"id": "vocabulary", "token_ids": [257]},
        {"id": "wide", "token_ids": [2**31]},
        {"id": "empty", "token_ids": []},
        {"id": "long", "token_ids": [1] * 512},
    ]
    text = "\n".join(json.dumps(one) for one in good[:3] + bad + good[3:]) + "\nnot json\n"
    done = nextn_run(speculative, "--requests", "-", "--json", "--ignore-eos", stdin=text)
    assert done.returncode == ExitCode.USAGE
    lines = {str(line["id"]): line for line in json_lines(done) if "id" in line}
    for one in bad:
        assert lines[one["id"]]["finish_reason"] == "error"
    for one in good:
        ids = ",".join(map(str, one["token_ids"]))
        flags = ("--token-ids", ids, "--max-new-tokens", "12", "--ignore-eos", "--json")
        alone = json_lines(nextn_run(speculative, *flags))[0]
        assert lines[one["id"]]["token_ids"] == alone["token_ids"]


@pytest.mark.parametrize("short", range(6))
def test_prompts_up_to_the_artifacts_length(speculative: Path, short: int) -> None:
    """A prompt of N - j tokens leaves j: speculation neither shortens nor lengthens the output."""
    ids = ",".join(str(token % 257) for token in range(512 - short))
    flags = ("--token-ids", ids, "--max-new-tokens", "100", "--ignore-eos", "--json")
    done = nextn_run(speculative, *flags)
    if short == 0:
        assert done.returncode == ExitCode.USAGE
        return
    line = json_lines(done)[0]
    assert (len(line["token_ids"]), line["finish_reason"]) == (short, "length")
    plain = json_lines(nextn_run(speculative, *flags, "--no-speculation"))[0]
    assert plain["token_ids"] == line["token_ids"]


def test_python_face_continues_text(compiled_artifact: CompiledArtifacts) -> None:
    with nextn.load(compiled_artifact("demo")) as engine:
        first, second = engine.generate(["def main(", "import "], max_new_tokens=48)
        assert first.text and second.text
        (plain,) = nextn.load(compiled_artifact("demo"), speculation=False).generate(
            "def main(", max_new_tokens=48
        )
    assert plain.token_ids == first.token_ids


def test_the_demo_accepts_what_its_training_measured(compiled_artifact: CompiledArtifacts) -> None:
    """The prompts and the definition of demo/training/README.md: 3.577 there, 3.3 promised."""
    prompts = REPOSITORY / "nextn" / "weights" / "demo" / "prompts.jsonl"
    done = nextn_run(
        compiled_artifact("demo"), "--requests", str(prompts), "--max-new-tokens", "256", "--json"
    )
    *completions, summary = json_lines(done)
    assert len(completions) == 50
    lens = [length for one in completions for length in one["accept_lens"]]
    assert sum(lens) / len(lens) == pytest.approx(3.577, abs=0.01)
    assert summary["summary"]["mean_acceptance_length"] == pytest.approx(sum(lens) / len(lens), abs=1e-3)


def test_stop_string_inside_an_accepted_window(compiled_artifact: CompiledArtifacts) -> None:
    """https://github.com/vllm-project/vllm/issues/23938: text and ids end at the stop string."""
    with nextn.load(compiled_artifact("demo")) as engine:
        (free,) = engine.generate("class ", max_new_tokens=60)
        assert free.text is not None
        stop = free.text[20:23]
        (stopped,) = engine.generate("class ", max_new_tokens=60, stop=stop)
    cut = free.text.index(stop)
    assert (stopped.text, stopped.finish_reason) == (free.text[:cut], "stop")
    assert len(stopped.token_ids) == cut + len(stop)  # one token a byte
