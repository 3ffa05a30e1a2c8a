"""The wheel: everything an installation needs, nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nextn.runtime.contract.version import VERSION

REPOSITORY = Path(__file__).parents[1]

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from the working tree with the build tools that are installed."""
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(REPOSITORY)], check=True)
    [path] = folder.glob("nextn-*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_is_for_one_platform(wheel: zipfile.ZipFile) -> None:
    name = Path(str(wheel.filename)).name
    assert name.startswith(f"nextn-{VERSION}-py3-none-")
    assert not name.endswith("-any.whl")


def test_every_python_file_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert "nextn/__init__.py" in names
    for file in (REPOSITORY / "nextn").rglob("*.py"):
        assert file.relative_to(REPOSITORY).as_posix() in names


def test_libraries_headers_and_the_demo_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert any(name.startswith("nextn/runtime/lib/libnextn.") for name in names)
    assert {"nextn/runtime/include/nextn.h", "nextn/runtime/include/nextn.hpp"} <= set(names)
    demo = [
        name.removeprefix("nextn/weights/demo/") for name in names if name.startswith("nextn/weights/demo/")
    ]
    assert {"config.json", "model.safetensors", "tokenizer.json", "prompts.jsonl"} <= set(demo)


def test_sources_and_leftovers_are_not_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    for name in wheel.namelist():
        assert not name.startswith(("tests/", "demo/", "nextn/tests/"))
        assert not name.endswith((".cpp", ".pyc", ".log", ".map"))
        assert "__pycache__" not in name and ".ruff_cache" not in name


def test_both_commands_are_declared(wheel: zipfile.ZipFile) -> None:
    declared = wheel.read(f"nextn-{VERSION}.dist-info/entry_points.txt").decode()
    assert "nextn-compile = nextn.compile.cli:main" in declared.replace("=", " = ").replace("  ", " ")
    assert "nextn-run = nextn.runtime.cli:main" in declared.replace("=", " = ").replace("  ", " ")


def test_the_license_travels_along(wheel: zipfile.ZipFile) -> None:
    assert f"nextn-{VERSION}.dist-info/licenses/LICENSE" in wheel.namelist()
