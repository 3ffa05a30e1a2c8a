"""Finding and loading libnextn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import nextn.runtime
from nextn.runtime.bindings import abi
from nextn.runtime.bindings.library import (
    LIBRARY_FILE,
    LIBRARY_VARIABLE,
    find_library,
    find_torch_library,
    load_library,
    status_error,
)
from nextn.runtime.contract.errors import ArtifactError, ExecutionError, UsageError


@pytest.fixture
def reloaded() -> Iterator[None]:
    load_library.cache_clear()
    yield
    load_library.cache_clear()


def test_the_packaged_library_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(nextn.runtime, "__path__", [str(tmp_path / "sources"), str(tmp_path)])
    with pytest.raises(ExecutionError, match="not installed"):
        find_library()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / LIBRARY_FILE).touch()
    assert find_library() == tmp_path / "lib" / LIBRARY_FILE


def test_the_debug_override_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "mine.so"))
    assert find_library() == tmp_path / "mine.so"


@pytest.mark.usefixtures("reloaded")
def test_a_file_that_is_no_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "absent.so"))
    with pytest.raises(ExecutionError, match="absent.so"):
        load_library()


@pytest.mark.usefixtures("reloaded")
def test_a_library_without_our_functions_is_refused(
    compile_c: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "other.c"
    source.write_text("int unrelated;\n")
    monkeypatch.setenv(LIBRARY_VARIABLE, str(compile_c(source, "-fPIC", "-shared")))
    with pytest.raises(ExecutionError, match="nextn_version"):
        load_library()


@pytest.mark.usefixtures("reloaded")
def test_a_library_of_another_version_is_refused(
    compile_c: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = abi.PROTOTYPES.keys() - {"nextn_version"}
    source = tmp_path / "old.c"
    source.write_text(
        'const char *nextn_version(void) { return "0.0.1"; }\n'
        + "".join(f"void {name}(void) {{}}\n" for name in names)
    )
    monkeypatch.setenv(LIBRARY_VARIABLE, str(compile_c(source, "-fPIC", "-shared")))
    with pytest.raises(ExecutionError, match="found 0.0.1"):
        load_library()


def test_statuses_become_exceptions() -> None:
    assert isinstance(status_error(abi.Status.USAGE, "x"), UsageError)
    assert isinstance(status_error(abi.Status.ARTIFACT, "x"), ArtifactError)
    assert isinstance(status_error(abi.Status.RUNTIME, "x"), ExecutionError)
    assert "status 77" in str(status_error(77, ""))


def test_torch_is_found_but_not_imported() -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    library = find_torch_library()
    assert library is not None
    assert library.is_file()


def test_no_runtime_module_imports_torch() -> None:
    script = """
import importlib, pkgutil, sys
import nextn, nextn.runtime
nextn.load, nextn.NextnError
for module in pkgutil.iter_modules(nextn.runtime.__path__, "nextn.runtime."):
    importlib.import_module(module.name)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
