"""Paths for the command lines of other programs, which a user's own paths need not be fit for.

Torch writes the compiler's command line as text and splits it at the spaces again, so that a space, a
quote or a line break in a path makes several arguments of it. Workers get links with plain names instead.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nextn.runtime.contract.errors import ExecutionError

_SAFE = re.compile(r"[A-Za-z0-9_./+-]{1,200}")

_PREFIX = "nextn-"

_PLACES = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))

_ATTEMPTS = 3


def is_safe(path: str | Path) -> bool:
    """Whether a shell, torch and a compiler all read it as one word: an absolute path, or a bare name."""
    text = str(path)
    return _SAFE.fullmatch(text) is not None and (text.startswith("/") or text[0] != "-" and "/" not in text)


def places(output: Path) -> list[Path]:
    """Where a private folder may be made, in the order of preference; `output` is the artifact."""
    own = os.environ.get("TMPDIR")
    return [*([Path(own)] if own else []), *_PLACES, output.absolute().parent]


@contextmanager
def private_folder(candidates: Iterable[Path], *, runs_programs: bool) -> Iterator[Path]:
    """A new folder for this user alone, with a safe path, in the first of `candidates` that allows it.

    It is removed on the way out; one that a killed compile left, by the next compile that comes to its place.

    Args:
        runs_programs: a program in the folder must be allowed to run, which some temporary folders forbid.

    Raises ExecutionError if no candidate is fit.
    """
    tried = list(dict.fromkeys(candidates))
    for place in tried:
        if (made := _private_folder(place, runs_programs)) is not None:
            break
    else:
        raise ExecutionError(
            "no temporary folder has a path that compilers take as one word; set TMPDIR to one",
            expected="a writable folder of letters, digits and _ . + -",
            found=", ".join(map(str, tried)),
        )
    folder, lock = made
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _private_folder(place: Path, runs_programs: bool) -> tuple[Path, int] | None:
    # Torch takes a compiler for clang if the word is anywhere in its path.
    if not place.is_absolute() or not is_safe(place) or "clang" in str(place):
        return None
    try:
        _remove_abandoned(place)
        for _ in range(_ATTEMPTS):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
            # None: another compile took the folder for an abandoned one before it was locked.
            if (lock := _lock(folder)) is not None:
                break
        else:
            return None
    except OSError:
        return None
    if runs_programs and not _may_run(folder):
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        return None
    return folder, lock


def _remove_abandoned(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        if (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the lock of this user's folder; None if it is held, of others, or gone."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.getuid() and folder.exists():
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _may_run(folder: Path) -> bool:
    program = folder / "program"
    program.touch(mode=0o700)
    try:
        return os.access(program, os.X_OK)
    finally:
        program.unlink()
