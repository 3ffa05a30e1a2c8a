"""Amount, speed and time left, with a clock that does not run by itself."""

from __future__ import annotations

from nextn.compile.build.progress import Meter


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_speed_and_time_left() -> None:
    clock, lines = Clock(), list[str]()
    meter = Meter(lines.append, clock)
    meter("a", 0, 4_000_000_000)
    clock.seconds = 10.0
    meter("b", 1_000_000_000, 4_000_000_000)
    assert lines == ["0 B of 4.0 GB, 0 B/s, a", "1.0 GB of 4.0 GB, 100.0 MB/s, 30 s left, b"]


def test_calls_in_quick_succession_are_not_all_shown() -> None:
    clock, lines = Clock(), list[str]()
    meter = Meter(lines.append, clock)
    for step in range(1000):
        clock.seconds = step / 1000
        meter("a", step, 1000)
    assert 4 <= len(lines) <= 6


def test_what_was_there_already_is_no_speed() -> None:
    """A continued packing starts at what it found."""
    clock, lines = Clock(), list[str]()
    meter = Meter(lines.append, clock)
    meter("a", 3_000_000_000, 4_000_000_000)
    clock.seconds = 20.0
    meter("b", 3_100_000_000, 4_000_000_000)
    assert lines[-1] == "3.1 GB of 4.0 GB, 5.0 MB/s, 3 min left, b"


def test_hours() -> None:
    clock, lines = Clock(), list[str]()
    meter = Meter(lines.append, clock)
    meter("a", 0, 10**12)
    clock.seconds = 10.0
    meter("a", 10**9, 10**12)
    assert lines[-1] == "1.0 GB of 1.0 TB, 100.0 MB/s, 2 h 46 min left, a"
