"""A C++ host of `.om` graphs under the address sanitizer: whole rounds, and every call of ACL failing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nextn.graphs.session_shape import SessionShape
from nextn.weights import Checkpoint
from tests.artifact_builder import write_uncompiled
from tests.fakes.cann import build as fake_build
from tests.native.conftest import REPOSITORY, build_sanitized, run_tool
from tests.npu.offline_models import CALLS, block_of, model_def
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

PROMPTS, NEW_TOKENS, STEPS = (3, 40, 17), 9, 2


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sanitized = build_sanitized()
    output = tmp_path_factory.mktemp("om_program") / "om_program"
    fake = fake_build.libraries()
    folders = [flag for folder in (sanitized.folder, fake) for flag in ("-L", folder, f"-Wl,-rpath,{folder}")]
    run_tool(
        *("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *sanitized.compile_flags),
        *("-I", REPOSITORY / "nextn/runtime/native/include", Path(__file__).with_name("om_program.cpp")),
        *("-o", output, *folders, "-lnextn", "-lascendcl"),
    )
    return output


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = CASES["tiny"].config
    folder = tmp_path_factory.mktemp("om_program_artifact")
    checkpoint = Checkpoint.open(write_checkpoint(folder / "tiny", config, random_weights(config, seed=7)))
    shape = SessionShape(
        checkpoint.config, num_steps=STEPS, batch_sizes=(1, 2), max_seq_len=128, prefill_chunk=16
    )
    return write_uncompiled(
        folder / "artifact", checkpoint, shape, device="npu", emit="om", content=model_def, returns=block_of
    )


def scripted() -> str:
    """What the program's models say: tokens count up, and what remains decides how many drafts are taken."""
    text = ""
    for length in PROMPTS:
        remaining = NEW_TOKENS - 1
        lens = []
        while remaining > 0:
            lens.append(remaining % (STEPS + 1) + 1)
            remaining -= min(lens[-1], remaining)
        tokens = "".join(f"{length + i} " for i in range(NEW_TOKENS))
        text += f"{tokens}|{''.join(f' {one}' for one in lens)}; "
    return text


def test_rounds_and_every_failing_call(program: Path, artifact: Path) -> None:
    """Nothing leaks, on the host or in ACL, which is initialised once and finalised when the process ends."""
    faults = ["aclInit:1", *(f"{function}:{nth}" for function in CALLS for nth in (1, 2))]
    done = subprocess.run(
        [program, artifact, *faults],
        capture_output=True,
        text=True,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *failed, whole, end = done.stdout.splitlines()
    assert whole == f"0 {scripted()}" and end == "finalized"
    for fault, line in zip(faults, failed, strict=True):
        function = fault.partition(":")[0]
        once = function in ("aclrtCreateContext", "aclrtCreateStream", "aclrtMemset", "aclrtMallocHost")
        # The first gives the thread its own context back, which has nothing to do with the session.
        harmless = fault == "aclrtSetCurrentContext:1" or (fault.endswith(":2") and once)
        assert line == f"0 {scripted()}" if harmless else line.startswith(f"0 {function} failed"), fault


def test_threads_that_have_no_context(program: Path, artifact: Path) -> None:
    """As in a host that never chose a device: each thread that calls is given the session's context."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "FAKE_CANN_BARE_THREADS": "1"}
    done = subprocess.run(
        [program, artifact, "threads"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == 2 * [f"0 {scripted()}"] + ["finalized"]
