"""Ctrl-C at any moment of either tool: exit code 130 and at most one line."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from tests.commands import NEXTN_COMPILE, NEXTN_RUN

RUN = (NEXTN_RUN, "nonexistent", "--prompt", "a")
COMPILE = (NEXTN_COMPILE, "demo", "--dry-run")


@pytest.mark.parametrize(
    ("command", "imported"),
    [
        (RUN, "nextn.runtime.contract.manifest"),
        (RUN, "tokenizers"),
        (RUN, "rich.console"),
        (COMPILE, "argparse"),
        (COMPILE, "torch._utils"),
        (COMPILE, "torch.export"),
    ],
)
def test_while_importing(command: tuple[str, ...], imported: str) -> None:
    """Python reports each import on stderr, which tells when to strike."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.rpartition("|")[2].strip() == imported:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    said = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert (process.returncode, out) == (130, "")
    assert said == [f"nextn-{'run' if command is RUN else 'compile'}: error: interrupted"]


def run_script(body: str, *signals_after: str) -> tuple[int, list[str], str]:
    """Runs `body` as a tool; sends SIGINT each time it prints one of `signals_after`."""
    script = """\
import signal, sys, time
from nextn.runtime.tool.interrupts import orderly
from nextn.runtime.tool.run_tool import run_tool
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script + textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line.strip())
        if printed[-1] in signals_after:
            process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    return process.returncode, printed, err


def test_a_second_one_does_not_disturb_the_shutdown() -> None:
    code, printed, err = run_script(
        """
        def command(arguments):
            try:
                with orderly():
                    print("working", flush=True)
                    time.sleep(30)
            except KeyboardInterrupt:
                print("cleaning", flush=True)
                time.sleep(0.3)
                print("clean", flush=True)
                time.sleep(0.3)
                return 130
        sys.exit(run_tool("tool", command, None))
        """,
        *("working", "cleaning", "clean"),
    )
    assert (code, printed, err) == (130, ["working", "cleaning", "clean"], "")


def test_insisting_ends_a_shutdown_that_hangs() -> None:
    code, printed, err = run_script(
        """
        def command(arguments):
            try:
                with orderly():
                    print("working", flush=True)
                    time.sleep(30)
            except KeyboardInterrupt:
                time.sleep(1.1)
                print("hanging", flush=True)
                time.sleep(30)
        sys.exit(run_tool("tool", command, None))
        """,
        *("working", "hanging"),
    )
    assert (code, printed, err) == (130, ["working", "hanging"], "")


def test_one_that_a_library_swallows_still_counts() -> None:
    code, printed, err = run_script(
        """
        def command(arguments):
            with orderly():
                try:
                    print("working", flush=True)
                    time.sleep(30)
                except BaseException:
                    pass
            print("not reached")
        sys.exit(run_tool("tool", command, None))
        """,
        "working",
    )
    assert (code, printed, err) == (130, ["working"], "tool: error: interrupted\n")


def test_one_after_the_outcome_is_settled_changes_nothing() -> None:
    code, _, err = run_script(
        """
        import atexit
        atexit.register(lambda: (print("leaving", flush=True), time.sleep(0.3)))
        sys.exit(run_tool("tool", lambda arguments: 3, None))
        """,
        "leaving",
    )
    assert (code, err) == (3, "")


def test_a_background_job_keeps_ignoring_it() -> None:
    code, _, err = run_script(
        """
        def command(arguments):
            print("working", flush=True)
            time.sleep(0.3)
            return 0
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(run_tool("tool", command, None))
        """,
        "working",
    )
    assert (code, err) == (0, "")
