"""What an embedder meets: the headers, the example program, the exported symbols, and the heap left alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import HERE, REPOSITORY, Build, run_tool
from .fake_artifact import expected_tokens

INCLUDE = REPOSITORY / "nextn/runtime/native/include"
THIRD_PARTY = (REPOSITORY / "third_party/yyjson", REPOSITORY / "third_party/libmd")
MAX_HEADER_LINES = 250


def run_program(build: Build, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # Programs carry their sanitizer, and unlike Python must not leak.
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1", **environment},
        timeout=60,
    )


def test_header_is_c99_and_short(tmp_path: Path) -> None:
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", INCLUDE]
    run_tool("gcc", *flags, "-c", HERE / "header_use.c", "-o", tmp_path / "header_use.o")
    assert len((INCLUDE / "nextn.h").read_text().splitlines()) <= MAX_HEADER_LINES


def test_cpp_header_stands_alone(tmp_path: Path) -> None:
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    run_tool("g++", *flags, "-x", "c++", INCLUDE / "nextn.hpp")


def test_program_in_c(build: Build, artifact: Path, fake_torch: str, tmp_path: Path) -> None:
    program = tmp_path / "header_use"
    flags = [flag for flag in build.compile_flags if "-fsanitize" in flag]
    link = ["-L", build.folder, "-lnextn", f"-Wl,-rpath,{build.folder}"]
    run_tool("gcc", "-std=c99", *flags, "-I", INCLUDE, HERE / "header_use.c", "-o", program, *link)
    done = run_program(build, program, artifact, fake_torch)
    assert done.returncode == 0, done.stdout + done.stderr
    tokens = expected_tokens([25, 10, 11, 12], 32)
    assert done.stdout.splitlines()[:-1] == [f"1:{token}" for token in tokens]


def test_example_without_python(build: Build, artifact: Path, fake_torch: str, tmp_path: Path) -> None:
    """Finds libtorch through LD_LIBRARY_PATH, and maps no Python."""
    program = build.compile(REPOSITORY / "examples/generate.cpp", tmp_path / "generate")
    search = {"LD_LIBRARY_PATH": str(Path(fake_torch).parent)}
    done = run_program(build, program, artifact, "3,1,4,1,5", "30", "0.5", "77", **search)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ",".join(map(str, expected_tokens([3, 1, 4, 1, 5], 30, 77, 0.5))) + "\n"
    assert "python" not in run_tool("ldd", program).stdout

    for arguments, status, text in (
        (["3,x"], 2, "generate: not a number in range: 3,x"),
        (["3,"], 2, "not a number in range: 3,"),
        ([""], 2, "not a number in range"),
        (["9223372036854775808"], 2, "not a number in range"),
        (["3", "4 abc"], 2, "not a number in range: 4 abc"),
        (["3", "1e3"], 2, "not a number in range: 1e3"),
        (["3", "99999999999999999999"], 2, "not a number in range"),
        (["3", "5", "1,5"], 2, "not a number in range: 1,5"),
        (["3", "5", "1e999"], 2, "not a number in range"),
        (["3", "5", ""], 2, "not a number in range"),
        (["3", "5", "nan"], 2, "request.temperature is nan"),
        (["3", "5", "1", "-9223372036854775809"], 2, "not a number in range"),
        (["99"], 2, "request.prompt[0] is 99, allowed: 0 .. 60"),
        (["3", "5", "-1"], 2, "request.temperature is -1"),
        ([], 2, "usage: generate"),
    ):
        refused = run_program(build, program, artifact, *arguments, **search)
        assert refused.returncode == status and text in refused.stderr
        assert refused.stdout == "" and refused.stderr.count("\n") == 1
    absent = run_program(build, program, tmp_path, "3", **search)
    assert absent.returncode == 4 and "manifest.json" in absent.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_example_with_a_full_disk(
    plain_build: Build, artifact: Path, fake_torch: str, tmp_path: Path
) -> None:
    program = plain_build.compile(REPOSITORY / "examples/generate.cpp", tmp_path / "generate")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [program, artifact, "3", "5"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(Path(fake_torch).parent)},
        )
    assert (done.returncode, done.stderr) == (
        5,
        "generate: cannot write to stdout: No space left on device\n",
    )


def test_torch_is_found_beside_the_package(
    plain_build: Build, artifact: Path, fake_torch: str, tmp_path: Path
) -> None:
    """site-packages/nextn/runtime/lib/libnextn.so looks in site-packages/torch/lib."""
    installed = tmp_path / "nextn/runtime/lib/libnextn.so"
    installed.parent.mkdir(parents=True)
    shutil.copy(plain_build.library, installed)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/lib").symlink_to(Path(fake_torch).parent)
    outcome = Build(installed.parent, {}).host(("open", {"artifact": str(artifact)}), ("version", {}))
    assert outcome[0]["status"] == 0, outcome
    assert re.fullmatch(r"\d+\.\d+\.\d+", outcome[1]["version"])


def test_only_the_interface_is_exported(plain_build: Build) -> None:
    listing = run_tool("nm", "-D", "--defined-only", plain_build.library).stdout
    exported = {line.split()[-1] for line in listing.splitlines()}
    declared = set(re.findall(r"\b(nextn_\w+)\(", (INCLUDE / "nextn.h").read_text()))
    assert exported == declared


@pytest.mark.parametrize("mode", ["round", "phases"])
def test_a_round_allocates_nothing(
    plain_build: Build, artifact: Path, fake_torch: str, tmp_path: Path, mode: str
) -> None:
    """Two vectors are reserved as a request gets its slot, and shrunk as it ends: 12 requests, 24 turns."""
    program = plain_build.compile(HERE / "allocation_probe.cpp", tmp_path / "allocation_probe")
    done = run_program(plain_build, program, artifact, fake_torch, mode, "quiet")
    assert done.returncode == 0, done.stderr
    inside, outside, turns = map(int, done.stdout.split())
    assert inside == 0 and outside <= 12 * 4 and turns <= 12 * 2
    probed = run_program(plain_build, program, artifact, fake_torch, mode, "allocating")
    inside, outside, turns = map(int, probed.stdout.split())
    assert inside == 0 and outside > 12 * 4 and turns > 12 * 2, "the probe sees what the callback allocates"


def test_internal_names_do_not_collide_with_the_public_ones(tmp_path: Path) -> None:
    """`nextn.hpp` and every header of the library in one translation unit."""
    headers = sorted((REPOSITORY / "nextn/runtime/native/src").glob("*.h"))
    source = tmp_path / "all.cpp"
    source.write_text("".join(f'#include "{name}"\n' for name in ("nextn.hpp", *(h.name for h in headers))))
    include = [flag for folder in (INCLUDE, headers[0].parent, *THIRD_PARTY) for flag in ("-I", folder)]
    run_tool("g++", "-std=c++17", "-fsyntax-only", *include, source)


def test_the_block_header_is_what_the_contract_generates() -> None:
    command = [sys.executable, "-m", "nextn.runtime.contract.blocks_header"]
    generated = run_tool(*command).stdout
    assert (REPOSITORY / "nextn/runtime/native/src/blocks.h").read_text() == generated
