"""Builds libnextn, a stand-in libtorch and stand-in graphs once per test session."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import nextn.runtime

from .fake_artifact import write_artifact

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"

Outcome = dict[str, Any]


def run_tool(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a build tool; its output is in the failure if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@dataclass(frozen=True)
class Build:
    """Where one build of the library lies, and the environment in which Python can load it."""

    folder: Path
    environment: dict[str, str]
    compile_flags: tuple[str, ...] = ()

    @property
    def library(self) -> Path:
        return self.folder / "libnextn.so"

    def host(self, *operations: tuple[str, Outcome], **environment: str) -> list[Outcome]:
        """Runs operations of host.py in a new process; a crash or a sanitizer's finding fails the test."""
        done = subprocess.run(
            [sys.executable, str(HERE / "host.py"), str(self.library)],
            input=json.dumps(operations),
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment, **environment},
            timeout=120,
        )
        assert done.returncode == 0, f"host exited with {done.returncode}\n{done.stdout}{done.stderr}"
        outcomes: list[Outcome] = json.loads(done.stdout)
        return outcomes

    def compile(self, source: Path, output: Path) -> Path:
        """A program linked against this build."""
        include = REPOSITORY / "nextn/runtime/native/include"
        flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", *self.compile_flags]
        link = ["-L", self.folder, "-lnextn", f"-Wl,-rpath,{self.folder}"]
        run_tool("g++", *flags, "-I", include, source, "-o", output, *link)
        return output


@pytest.fixture(scope="session")
def plain_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A copy of the installed libraries: optimised, as users have them."""
    installed = [Path(folder) / "lib" for folder in nextn.runtime.__path__]
    folder = tmp_path_factory.mktemp("plain_build")
    shutil.copytree(next(path for path in installed if path.exists()), folder, dirs_exist_ok=True)
    return Build(folder, {})


@pytest.fixture(scope="session")
def sanitized_build() -> Build:
    return build_sanitized()


def build_sanitized() -> Build:
    """Kept in build/ between runs; CMake compiles what has changed."""
    folder = REPOSITORY / "build" / "sanitized"
    folder.mkdir(parents=True, exist_ok=True)
    # Not optimised: with -O1 the JSON parser takes twice as long, with -O3 a minute. Assertions stay in.
    flags = f"-O0 {SANITIZERS}"
    configure = ("-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_CXX_FLAGS=-Werror {flags}", f"-DCMAKE_C_FLAGS={flags}")
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_tool("cmake", "-S", REPOSITORY, "-B", folder, *configure)
        run_tool("cmake", "--build", folder, "--parallel", "2")
    # libstdc++ too: the sanitizer looks for its exception functions when the process starts.
    names = ("libasan.so", "libstdc++.so")
    runtime = " ".join(run_tool("g++", f"-print-file-name={name}").stdout.strip() for name in names)
    # Python itself leaks at exit; leaks are looked for in the C++ programs.
    environment = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    return Build(folder, environment, tuple(SANITIZERS.split()))


@pytest.fixture(params=["plain_build", "sanitized_build"])
def build(request: pytest.FixtureRequest) -> Build:
    """Every test that takes this runs against both builds."""
    chosen: Build = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(scope="session")
def fake_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with fake_torch (as libtorch_cpu.so) and fake_graph.so."""
    folder = tmp_path_factory.mktemp("fake_libraries")
    for source, name in (("fake_torch.cpp", "libtorch_cpu.so"), ("fake_graph.cpp", "fake_graph.so")):
        flags = (
            "-std=c++17",
            "-O1",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-Wl,-soname,{name}",
        )
        run_tool("g++", *flags, HERE / source, "-o", folder / name)
    return folder


@pytest.fixture(scope="session")
def fake_torch(fake_libraries: Path) -> str:
    return str(fake_libraries / "libtorch_cpu.so")


@pytest.fixture(scope="session")
def make_artifact(tmp_path_factory: pytest.TempPathFactory, fake_libraries: Path) -> Callable[..., Path]:
    """Writes a fresh artifact that a test may damage."""

    def make(num_steps: int = 3) -> Path:
        folder = tmp_path_factory.mktemp("artifacts") / "artifact"
        return write_artifact(folder, fake_libraries / "fake_graph.so", num_steps)

    return make


@pytest.fixture(scope="session")
def artifact(make_artifact: Callable[..., Path]) -> Path:
    """A sound artifact with three draft steps; tests must not change it."""
    return make_artifact()
