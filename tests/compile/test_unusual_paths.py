"""Names that a user may give to folders, and commands that name the compiler, against the real compiler.

Each compile makes one library of three nodes (see stub_graph_worker.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

from nextn.runtime.contract.manifest import Manifest, parse_manifest
from tests.compile.conftest import SMALL
from tests.compile.stand_in_compile import STUB_GRAPH_WORKER, main

REPOSITORY = Path(__file__).parents[2]

OPTIONS = (*SMALL, "--speculative-num-steps", "0", "--isa", "avx2")

HOSTILE = "-a 'b\" $c$(d) %s {} {0}\n\\;&|`#é名"

names = st.text(alphabet=" '\"$%{}\n\\-;&|*?#`~!@=,:()[]<>aZ0é名", min_size=1, max_size=40)

few = settings(
    max_examples=2,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
)
"""Each example takes a dozen seconds."""


@contextmanager
def in_folder(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, environment):
            yield
    finally:
        os.chdir(before)


def compiled(folder: Path, checkpoint: Path, output: str, **environment: str) -> Manifest:
    """The manifest of an artifact that was compiled in `folder`, to a path relative to it."""
    with in_folder(folder, environment):
        code = main([*OPTIONS, f"--output={output}", "--", str(checkpoint)], STUB_GRAPH_WORKER)
    assert code == 0
    library = (folder / output / "graphs" / "decode.b1.so").read_bytes()
    assert library.startswith(b"\x7fELF") and b"AOTInductorModelContainerRun" in library
    path = folder / output / "manifest.json"
    return parse_manifest(path.read_text(), path)


def check_names(folder: Path, checkpoint: Path, source: str, output: str, temporary: str) -> None:
    assume(len({source, output, temporary}) == 3)
    (folder / source).symlink_to(checkpoint)
    (folder / temporary).mkdir()
    (folder / "ctypes.py").write_text("open('of the working folder', 'w').close()")
    compiled(folder, Path(source), output, TMPDIR=str(folder / temporary))
    assert {path.name for path in folder.iterdir()} == {source, output, temporary, "ctypes.py"}
    assert list((folder / temporary).iterdir()) == []


@few
@example("from" + HOSTILE, HOSTILE + 180 * "o", "tmp" + HOSTILE)
@given(names, names, names)
def test_any_name_compiles(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, source: str, output: str, temporary: str
) -> None:
    """https://github.com/pytorch/pytorch/issues/122476: names of the checkpoint, the output and TMPDIR.

    https://github.com/comfyanonymous/ComfyUI/issues/4196: nor is a module of the working folder run,
    by the interpreters that Inductor starts to try out what it compiled.
    """
    check_names(tmp_path_factory.mktemp("names"), checkpoint, source, output, temporary)


@pytest.mark.full
@settings(few, max_examples=8)
@example("c" * 200, "o" * 200, "t" * 200)
@given(names, names, names)
def test_any_more_names_compile(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, source: str, output: str, temporary: str
) -> None:
    check_names(tmp_path_factory.mktemp("names"), checkpoint, source, output, temporary)


@pytest.mark.full
@pytest.mark.parametrize("prefix", ["a b", "a'b\"", "$HOME", "%s %d", "é名"])
def test_any_environment_compiles(tmp_path: Path, checkpoint: Path, prefix: str) -> None:
    """https://github.com/pytorch/pytorch/issues/149713: the folder that Python and torch are installed in."""
    python = linked_environment(tmp_path / prefix)
    call = "import sys; from tests.compile.stand_in_compile import *; sys.exit(main(None, STUB_GRAPH_WORKER))"
    command = [str(python), "-c", call, str(checkpoint), "-o", str(tmp_path / "artifact"), *OPTIONS]
    where = "import torch; print(torch.__file__)"
    found = subprocess.run([str(python), "-c", where], capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(tmp_path / prefix))
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def linked_environment(folder: Path) -> Path:
    """A new environment's Python, with links to all that is installed here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for path in Path(pytest.__file__).parents[1].iterdir():
        (packages / path.name).symlink_to(path)
    return folder / "bin" / "python"
