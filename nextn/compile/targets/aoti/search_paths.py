"""Folders that the compiler searches for headers and libraries, by paths that it takes as one word."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch._inductor import cpp_builder

from nextn.compile.build.safe_paths import is_safe

Listed = Callable[[Any], list[str]]


@contextmanager
def safe_search_paths() -> Iterator[None]:
    """Inductor is given links to those folders of the environment whose own paths its command line splits."""
    # Through Any: its methods are not for assignment.
    options: Any = cpp_builder.BuildOptionsBase
    headers, libraries = options.get_include_dirs, options.get_libraries_dirs
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        options.get_include_dirs = _linked(headers, Path(folder))
        options.get_libraries_dirs = _linked(libraries, Path(folder))
        try:
            yield
        finally:
            options.get_include_dirs, options.get_libraries_dirs = headers, libraries


def _linked(listed: Listed, folder: Path) -> Listed:
    return lambda options: [path if is_safe(path) else _link(path, folder) for path in listed(options)]


def _link(path: str, folder: Path) -> str:
    """A link to `path`, the same at every call."""
    links = list(folder.iterdir())
    for link in links:
        if link.readlink() == Path(path):
            return str(link)
    link = folder / str(len(links))
    link.symlink_to(path)
    return str(link)
