"""The loop from prompt to tokens is native: no Python runs in it, and the library leaves the heap alone."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextn.runtime.bindings import abi
from nextn.runtime.bindings.library import find_library, find_torch_library
from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session
from tests.conftest import REPOSITORY
from tests.integration.conftest import build_host

PROMPT = tuple(range(250))
NEW_TOKENS = 200


@pytest.fixture(scope="module")
def allocation_probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = REPOSITORY / "tests" / "native" / "allocation_probe.cpp"
    return build_host(source, tmp_path_factory.mktemp("allocation_probe") / "allocation_probe")


def count_allocations(probe: Path, artifact: Path, mode: str, callback: str) -> tuple[int, int, int]:
    """Inside and outside the graphs, over a run of 12 requests, and the turns that allocate outside."""
    command = [str(probe), str(artifact), str(find_torch_library()), mode, callback]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    inside, outside, turns = map(int, done.stdout.split())
    return inside, outside, turns


@pytest.mark.parametrize("mode", ["round", "phases"])
def test_a_round_allocates_nothing_outside_the_graphs(
    speculative: Path, allocation_probe: Path, mode: str
) -> None:
    """Compiled graphs allocate their temporaries; around them a request does as it starts and as it ends."""
    inside, outside, turns = count_allocations(allocation_probe, speculative, mode, "quiet")
    assert inside > 1000
    assert outside <= 12 * 4 and turns <= 12 * 2
    probed = count_allocations(allocation_probe, speculative, mode, "allocating")
    assert probed[0] == inside
    assert probed[1] > 12 * 4 and probed[2] > 12 * 2, "the probe counts what the token callback allocates"


class GilHolder:
    """Looks into a session, and sleeps, without ever letting another thread of Python run."""

    def __init__(self, session: Session) -> None:
        # Functions of a PyDLL keep the GIL, unlike those of the CDLL that the face uses.
        self._library = ctypes.PyDLL(str(find_library()))
        abi.declare(self._library)
        self._libc = ctypes.PyDLL(None)
        self._session = session._handle

    def rounds(self) -> int:
        return int(self._library.nextn_session_get_metrics(self._session).num_rounds)

    def prefill_launches(self) -> int:
        return int(self._library.nextn_session_get_metrics(self._session).num_prefill_launches)

    def sleep_until(self, rounds: int, seconds: float) -> int:
        """Rounds done when there are `rounds`, or after `seconds`."""
        end = time.monotonic() + seconds
        while self.rounds() < rounds and time.monotonic() < end:
            self._libc.usleep(1000)
        return self.rounds()


@pytest.fixture
def restored_switch_interval() -> Iterator[None]:
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)


def rounds_without_python(
    session: Session, *, callback: bool, enough: int, seconds: float
) -> tuple[int, int]:
    """Rounds when the GIL was taken for good, and when it was given back; the run starts on a thread."""
    session.submit(PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    arguments = [lambda _request, _tokens: True] if callback else []
    worker = threading.Thread(target=session.run, args=arguments)
    holder = GilHolder(session)
    worker.start()
    # The prompt takes many launches, so that the GIL is taken long before the first round.
    while holder.prefill_launches() == 0:
        pass
    # Nobody may ask for the GIL from here on; nothing below gives it up unasked.
    sys.setswitchinterval(1000)
    before = holder.rounds()
    after = holder.sleep_until(enough, seconds)
    sys.setswitchinterval(0.005)
    worker.join()
    return before, after


def rounds_from_the_first(model: Model, *, callback: bool, enough: int, seconds: float) -> tuple[int, int]:
    """Rounds while the GIL was held from before the first on, and in all.

    Where the machine lets this thread wait through the prompt, the GIL comes too late: then once more.
    """
    for _ in range(20):
        with model.session() as session:
            before, after = rounds_without_python(session, callback=callback, enough=enough, seconds=seconds)
            if before == 0:
                return after, session.metrics().num_rounds
    raise AssertionError("this thread was never there before the first round")


def test_rounds_need_no_python(model: Model, restored_switch_interval: None) -> None:
    """While this thread holds the GIL, the worker's run goes on to its last round."""
    with model.session() as rehearsal:
        rehearsal.submit(PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True)
        rehearsal.run()
        rounds = rehearsal.metrics().num_rounds
    assert rounds >= 50
    assert rounds_from_the_first(model, callback=False, enough=rounds, seconds=30) == (rounds, rounds)


def test_a_python_callback_needs_the_gil(model: Model, restored_switch_interval: None) -> None:
    """The probe can fail: with a callback the run waits for Python at its first token."""
    held, in_all = rounds_from_the_first(model, callback=True, enough=50, seconds=0.5)
    assert held == 0 and in_all >= 50
