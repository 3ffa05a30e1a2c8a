"""What workers are given: the artifact by a path, and the compiler by a name, fit for command lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nextn.compile.build.compiler_command import find_compiler
from nextn.compile.build.safe_paths import is_safe, places, private_folder

_LINK = "artifact"


@dataclass(frozen=True)
class Workplace:
    """`folder` is the partial artifact by the path that workers use; `environment` is added to theirs."""

    partial: Path
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def path(self, path: Path) -> Path:
        """The path for workers of something in the partial artifact."""
        return self.folder / path.relative_to(self.partial)


@contextmanager
def workplace(partial: Path, output: Path, *, runs_compiler: bool) -> Iterator[Workplace]:
    """For the artifact `output`, which grows in the folder `partial`: that need not be there yet.

    Raises ExecutionError if its path is not fit for a compiler's command line and no temporary folder's is.
    """
    folder = partial.absolute()
    if not runs_compiler:
        yield Workplace(partial, folder)
        return
    compiler = find_compiler()
    if is_safe(folder) and compiler.is_program:
        yield Workplace(partial, folder, {"CXX": compiler.words[0]})
        return
    with private_folder(places(output), runs_programs=not compiler.is_program) as private:
        (private / _LINK).symlink_to(folder)
        program = compiler.words[0] if compiler.is_program else str(compiler.write_program(private))
        yield Workplace(partial, private / _LINK, {"CXX": program})
