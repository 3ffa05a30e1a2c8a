"""A host's executor in C, and artifacts whose graphs libnextn leaves to one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.artifact_builder import read_json, write_json

from .conftest import HERE, Build, run_tool
from .fake_artifact import BATCH_SIZES, CHUNK, SLOTS, write_artifact
from .test_native_programs import INCLUDE, run_program

USAGE, ARTIFACT, RUNTIME = 2, 4, 5


@pytest.fixture
def unlowered(tmp_path: Path) -> Path:
    """k = 0, with graph files that hold no code."""
    code = tmp_path / "graph"
    code.write_bytes(b"no code")
    folder = write_artifact(tmp_path / "artifact", code, num_steps=0)
    set_form(folder, "cpu", "onnx")
    return folder


def set_form(folder: Path, device: str, emit: str) -> None:
    manifest = read_json(folder)
    manifest["target"] |= {"device": device, "emit": emit}
    manifest["requires"] = []
    if emit in ("air", "om"):
        manifest["graphs"] = [graph | {"returns": "control"} for graph in manifest["graphs"]]
    write_json(folder, manifest)


@pytest.fixture
def play(build: Build, unlowered: Path, tmp_path: Path):
    program = tmp_path / "executor_use"
    flags = [flag for flag in build.compile_flags if "-fsanitize" in flag]
    link = ["-L", build.folder, "-lnextn", f"-Wl,-rpath,{build.folder}"]
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    run_tool("gcc", *warnings, *flags, "-I", INCLUDE, HERE / "executor_use.c", "-o", program, *link)

    def run(*fault: str) -> subprocess.CompletedProcess[str]:
        return run_program(build, program, unlowered, *fault)

    return run


def test_every_call_in_order(play) -> None:
    """An executor that lacks a function is refused; of a whole one nothing of the host's struct is kept."""
    done = play()
    assert done.returncode == 0, done.stdout + done.stderr
    rows = (32 + 16 + 1 + 9) * (SLOTS + 1)
    words = sum(BATCH_SIZES) + CHUNK + 2
    assert done.stdout.splitlines() == [
        "2 a function of the executor is NULL",
        f"12 weight bytes, {8 * rows} state bytes, {8 * words} input bytes",
        "attach ",
        *(f"load {graph}" for graph in ("prefill.b1", "decode.b1", "decode.b2", "decode.b4")),
        "1024+256 write control",
        "0+256 write control",
        "0+64 write prompt_tokens",
        "0+8 write prompt_count",
        "launch prefill.b1",
        "read result",
        "launch decode.b1",
        "read result",
        "launch decode.b1",
        "read result",
        *(f"token {number}" for number in (4, 5, 6)),
        "read control",
        f"{8 * 32 * (SLOTS + 1)} control bytes",
    ]


@pytest.mark.parametrize(
    ("fault", "error", "tokens"),
    [
        ("attach", "the executor could not take the session's memory", None),
        ("load", "the executor could not load a graph (key prefill.b1)", None),
        ("write", "the executor could not take what the host wrote (key control)", 0),
        ("launch", "the executor could not run a graph (key prefill.b1)", 0),
        ("read", "the executor could not read a state buffer (key result)", 0),
    ],
)
def test_each_call_may_fail(play, fault: str, error: str, tokens: int | None) -> None:
    done = play(fault)
    assert done.returncode == RUNTIME, done.stdout + done.stderr
    assert error in done.stdout.splitlines()
    if tokens is not None:
        assert done.stdout.count("token ") == tokens


@pytest.mark.parametrize(
    ("device", "emit", "status", "text"),
    [
        ("cpu", "onnx", USAGE, "graphs of format onnx are run by an executor"),
        ("cuda", "pt2", USAGE, "graphs of format pt2 are run by an executor"),
        ("npu", "air", ARTIFACT, "run build_om.sh, then nextn-compile --import-om"),
    ],
)
def test_without_an_executor(
    build: Build, unlowered: Path, device: str, emit: str, status: int, text: str
) -> None:
    """The artifact opens, without any libtorch; a session is refused."""
    set_form(unlowered, device, emit)
    opened, created = build.host(
        ("open", {"artifact": str(unlowered), "torch_library": "/nonexistent"}), ("create", {})
    )
    assert opened["status"] == 0, opened
    assert created["status"] == status and text in created["error"] and not created["made"]


@pytest.mark.parametrize("library", [None, "empty"])
def test_om_graphs_without_a_usable_cann(
    build: Build, unlowered: Path, tmp_path: Path, library: str | None
) -> None:
    """The artifact opens; a session says which library it needs, or what that lacks."""
    set_form(unlowered, "npu", "om")
    if library is not None:
        run_tool("gcc", "-shared", "-x", "c", "/dev/null", "-o", tmp_path / "libascendcl.so")
    opened, created = build.host(
        ("open", {"artifact": str(unlowered)}), ("create", {}), LD_LIBRARY_PATH=str(tmp_path)
    )
    assert opened["status"] == 0, opened
    assert created["status"] == RUNTIME and not created["made"]
    if library is None:
        assert "cannot load CANN's runtime; source its set_env.sh (file libascendcl.so" in created["error"]
    else:
        assert "CANN's runtime lacks a function (file libascendcl.so, key aclInit)" in created["error"]
