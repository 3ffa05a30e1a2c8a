"""C++ hosts compile against the headers in torch_npu, link the fake, and run without torch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.fakes.cann import build, wheel

SOURCE = Path(__file__).with_name("acl_program.cpp")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("program") / "acl_program"
    folder = build.libraries()
    includes = [part for path in wheel.include_folders() for part in ("-isystem", path)]
    link = ["-L", folder, "-lascendcl", f"-Wl,-rpath,{folder}"]
    subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Werror", *includes, SOURCE, "-o", output, *link], check=True
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
