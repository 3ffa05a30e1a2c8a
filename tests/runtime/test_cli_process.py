"""`nextn-run` as a process: signals, pipes, full disks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nextn.runtime.contract.errors import ExitCode
from tests.runtime.conftest import NEXTN_RUN, REPOSITORY

ArtifactMaker = Callable[..., Path]
Start = Callable[..., "subprocess.Popen[bytes]"]

SLOW = {"round_us": 20000}


def test_requests_come_from_stdin(artifact: ArtifactMaker, nextn_process: Start) -> None:
    process = nextn_process([artifact(), "--requests", "-", "--json"], stdin=subprocess.PIPE)
    out, err = process.communicate(b'{"token_ids": [65], "max_new_tokens": 2}\n', timeout=30)
    assert (process.returncode, err) == (0, b"")
    assert json.loads(out.splitlines()[0])["text"] == "AA"


@pytest.mark.parametrize("several", [False, True])
def test_ctrl_c_ends_a_run_after_its_turn(
    artifact: ArtifactMaker, nextn_process: Start, tmp_path: Path, several: bool
) -> None:
    """Finished results are on stdout already, unfinished ones are marked abort, and the code is 130."""
    lines = [{"id": "long", "token_ids": [66], "max_new_tokens": 400}]
    if several:
        lines.insert(0, {"id": "short", "token_ids": [65], "max_new_tokens": 2})
    requests = tmp_path / "requests"
    requests.write_text("\n".join(map(json.dumps, lines)))
    process = nextn_process([artifact(**SLOW), "--requests", requests, "--json", "--stream"])
    assert process.stdout is not None
    first = [process.stdout.readline() for _ in range(4)]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"nextn-run: error: interrupted\n")
    objects = [json.loads(line) for line in b"".join([*first, out]).splitlines()]
    reasons = {entry["id"]: entry["finish_reason"] for entry in objects if "finish_reason" in entry}
    assert reasons == ({"short": "length", "long": "abort"} if several else {"long": "abort"})


def test_ctrl_c_again_and_again_is_one_line(artifact: ArtifactMaker, nextn_process: Start) -> None:
    process = nextn_process([artifact(**SLOW), "--prompt", "a", "--max-new-tokens", "400", "--stream"])
    assert process.stdout is not None
    process.stdout.read(1)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"nextn-run: error: interrupted\n")


def test_a_closed_pipe_ends_quietly(artifact: ArtifactMaker, nextn_process: Start) -> None:
    process = nextn_process([artifact(**SLOW), "--prompt", "a", "--max-new-tokens", "400", "--stream"])
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=30) == 5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line_and_exit_5(artifact: ArtifactMaker, nextn_process: Start) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    process = nextn_process([artifact(), "--prompt", "a"], stdout=descriptor)
    os.close(descriptor)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 5
    assert err == b"nextn-run: error: No space left on device\n"


def test_text_that_stdout_cannot_encode_is_escaped(artifact: ArtifactMaker, nextn_process: Start) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = nextn_process([artifact(), "--prompt", "\u6f22", "--max-new-tokens", 3], env=environment)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, b"\\u6f22\n")


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        (">&-", ExitCode.RUNTIME, "stdout is closed"),
        ("<&-", ExitCode.USAGE, "stdin, which is closed"),
        ("2>/dev/full", ExitCode.USAGE, ""),
    ],
)
def test_closed_and_full_standard_streams(
    artifact: ArtifactMaker, redirection: str, code: ExitCode, message: str
) -> None:
    flags = "--token-ids 999999" if "full" in redirection else "--requests -"
    command = f"{' '.join(NEXTN_RUN)} {artifact()} {flags} {redirection}"
    done = subprocess.run(command, shell=True, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 1
