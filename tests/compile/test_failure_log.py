"""What a user is told of a graph that did not compile: the cause, and a log that is still there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compile.conftest import Outcome

Run = Callable[..., Outcome]

MISSING_HEADER = """\
Traceback (most recent call last):
  File "torch/_inductor/cpp_builder.py", line 696, in _run_compile_cmd
    subprocess.run(
subprocess.CalledProcessError: Command '['g++', 'c2.wrapper.cpp']' returned non-zero exit status 1.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "nextn/compile/build/worker.py", line 178, in main
    run_job(GraphJob.from_json(Path(job).read_text()))
torch._inductor.exc.CppCompileError: C++ compile error

Command:
g++ c2.wrapper.cpp -D NAME -o c2.wrapper.o

Output:
In file included from c2.wrapper.cpp:1:
c2.wrapper.cpp:3:10: warning: "NAME" redefined
c2.wrapper.cpp:7:10: fatal error: missing.h: No such file or directory
    7 | #include <missing.h>
compilation terminated.
"""

MISSING_LIBRARY = """\
/usr/bin/ld: warning: c2.o: missing .note.GNU-stack section
/usr/bin/ld: cannot find -lgomp: No such file or directory
collect2: error: ld returned 1 exit status

Set TORCHDYNAMO_VERBOSE=1 for more information
"""

CHAINED = """\
W1201 torch/_inductor/utils.py:1436] a warning about something else
Traceback (most recent call last):
  File "old.py", line 1, in <module>
ValueError: of something that was handled
done with that
Traceback (most recent call last):
  File "lowering.py", line 12, in lower
    return table[name]
KeyError: 'aten.unknown'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "worker.py", line 178, in main
RuntimeError: lowering failed

You can suppress this exception and fall back to eager
"""

CAUSES = {
    MISSING_HEADER: "c2.wrapper.cpp:7:10: fatal error: missing.h: No such file or directory",
    MISSING_LIBRARY: "/usr/bin/ld: cannot find -lgomp: No such file or directory",
    "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n": (
        "g++: fatal error: Killed signal terminated program cc1plus"
    ),
    CHAINED: "KeyError: 'aten.unknown'",
}
"""Logs in the form of gcc 12, binutils 2.40 and Python 3.11, each with the line that a person looks for."""


@pytest.mark.parametrize("log", CAUSES, ids=["header", "library", "memory", "exception"])
def test_the_cause_is_shown(tmp_path: Path, compile_to: Run, log: str) -> None:
    """https://github.com/pytorch/pytorch/issues/122476: what the compiler said is far above the last line."""
    failed = compile_to(tmp_path / "artifact", only="verify.b1", end="fail", log=log)
    assert failed.code == 5
    last = failed.err.splitlines()[-1]
    assert last.startswith(f"nextn-compile: error: compiling graph verify.b1 failed: exit 1: {CAUSES[log]};")


@pytest.mark.parametrize("end", ["fail", "crash"])
def test_the_log_is_kept_until_the_artifact_is_there(tmp_path: Path, compile_to: Run, end: str) -> None:
    output = tmp_path / "artifact"
    failed = compile_to(output, only="verify.b1", end=end, log=MISSING_HEADER)
    assert failed.code == 5
    found = re.search(r"\(file (.*verify\.b1\.log)\)$", failed.err.splitlines()[-1])
    assert found is not None, failed.err
    assert "about to compile verify.b1" in Path(found[1]).read_text()
    assert compile_to(output).code == 0
    assert not list(tmp_path.rglob("*.log")) and [path.name for path in tmp_path.iterdir()] == ["artifact"]
