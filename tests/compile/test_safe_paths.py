"""The private folder of a compile: where it is made, what it is removed by, and when there is none."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nextn.compile.build import safe_paths
from nextn.compile.build.safe_paths import is_safe, private_folder
from nextn.runtime.contract.errors import ExecutionError
from tests.compile.conftest import Outcome

HOLD = """
import sys, time
from pathlib import Path
from nextn.compile.build.safe_paths import private_folder
with private_folder([Path(sys.argv[1])], runs_programs=False) as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("path", ["/a/b-c/d_e.f+g", "g++", "clang++-14", "/"])
def test_plain_paths_are_safe(path: str) -> None:
    assert is_safe(path)


@pytest.mark.parametrize("char", [*" '\"$%{}\n\\&;|*?#`~!@=,:()[]<>é", "\udc80"])
def test_other_characters_are_not(char: str) -> None:
    assert not is_safe(f"/a{char}b")


@pytest.mark.parametrize("path", ["", "a/b", "-a", "/" + 200 * "a"])
def test_options_relative_and_long_paths_are_not(path: str) -> None:
    assert not is_safe(path)


def test_the_folder_is_for_its_user_and_goes(tmp_path: Path) -> None:
    with pytest.raises(KeyError), private_folder([tmp_path], runs_programs=True) as folder:
        assert folder.parent == tmp_path and stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "link").symlink_to(tmp_path / "kept")
        (tmp_path / "kept").mkdir()
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_first_fit_place_is_taken(tmp_path: Path) -> None:
    """Not one with a space, that is a file, or under which Inductor would take g++ for clang."""
    for name in ("a b", "of-clang", "fit"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    candidates = [tmp_path / name for name in ("a b", "absent", "file", "of-clang", "fit")]
    with private_folder(candidates, runs_programs=True) as folder:
        assert folder.parent == tmp_path / "fit"
    with pytest.raises(ExecutionError, match="set TMPDIR") as refused:
        with private_folder(candidates[:-1], runs_programs=True):
            pass
    assert str(tmp_path / "a b") in str(refused.value)


def test_a_place_that_forbids_programs_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As access(2) tells of a file system mounted without execution."""
    (tmp_path / "other").mkdir()
    access = os.access
    monkeypatch.setattr(
        "os.access", lambda path, mode: Path(path).parents[1] != tmp_path and access(path, mode)
    )
    with private_folder([tmp_path, tmp_path / "other"], runs_programs=True) as folder:
        assert folder.parent == tmp_path / "other"
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    with private_folder([tmp_path], runs_programs=False) as folder:
        assert folder.parent == tmp_path


def test_a_killed_compile_is_cleaned_up_after_and_a_live_one_left_alone(tmp_path: Path) -> None:
    (tmp_path / "nextn-file").write_text("of somebody")
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    held = Path(holder.stdout.readline().strip())
    with private_folder([tmp_path], runs_programs=False) as folder:
        assert held.exists() and folder != held
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert held.exists()
    with private_folder([tmp_path], runs_programs=False):
        assert not held.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["nextn-file"]


def test_without_a_place_nothing_is_packed(
    tmp_path: Path, compile_to: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_paths, "_PLACES", ())
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t m p"))
    (tmp_path / "a b").mkdir()
    refused = compile_to(tmp_path / "a b" / "artifact")
    assert refused.code == 5
    [line] = refused.err.splitlines()[-1:]
    assert re.search("no temporary folder has a path that compilers take.*set TMPDIR", line)
    assert "packed" not in refused.err
    assert list((tmp_path / "a b").iterdir()) == []
