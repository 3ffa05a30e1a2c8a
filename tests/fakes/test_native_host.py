"""C++ hosts compile against the headers in torch_npu, link the fake, and run without torch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.fakes.cann import build, wheel

HERE = Path(__file__).parent
SOURCE = HERE / "acl_program.cpp"


def includes() -> list[str | Path]:
    return [part for path in wheel.include_folders() for part in ("-isystem", path)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("program") / "acl_program"
    folder = build.libraries()
    link = ["-L", folder, "-lascendcl", f"-Wl,-rpath,{folder}"]
    subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Werror", *includes(), SOURCE, "-o", output, *link], check=True
    )
    return output


@pytest.mark.parametrize(
    ("argument", "strict", "expected"),
    [("no", "1", "0 replayed 0"), ("read", "0", "0 replayed 0"), ("read", "1", "107030 replayed 0")],
)
def test_a_host_without_torch(program: Path, argument: str, strict: str, expected: str) -> None:
    environment = {**os.environ, "FAKE_CANN_STRICT": strict}
    done = subprocess.run([program, argument], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == expected


@pytest.mark.parametrize(("definition", "agrees"), [((), True), (("-DWRONG",), False)])
def test_what_libnextn_declares_of_acl_is_what_the_headers_say(
    definition: tuple[str, ...], agrees: bool
) -> None:
    product = HERE.parents[1] / "nextn" / "runtime" / "native" / "src"
    command = ["g++", "-std=c++17", "-fsyntax-only", *definition, *includes(), "-I", product]
    done = subprocess.run([*command, HERE / "acl_abi_check.cpp"], capture_output=True, text=True)
    assert (done.returncode == 0) == agrees, done.stderr
