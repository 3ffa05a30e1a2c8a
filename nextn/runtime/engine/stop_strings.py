"""Cuts a stream of text at the first stop string, releasing what can no longer belong to one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The match that completes first ends the text; of those, the longest.

    That rule needs no look-ahead, so the cut does not depend on how the text is split into pushes.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched = False

    def push(self, text: str) -> str:
        """Text before any stop string that is now safe to show; sets `matched` when one completes."""
        if not self._stops:
            return text
        self._held += text
        cut = self._first_match()
        if cut is not None:
            self.matched = True
            return self._release(cut)
        return self._release(len(self._held) - self._possible_start_length())

    def flush(self) -> str:
        """Text held back for a match that did not come."""
        return self._release(len(self._held))

    def _release(self, length: int) -> str:
        released, self._held = self._held[:length], "" if self.matched else self._held[length:]
        return released

    def _first_match(self) -> int | None:
        """Start of the first match to complete."""
        found = [(start + len(stop), start) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_start_length(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(self._longest - 1, len(self._held))
        for length in range(longest, 0, -1):
            tail = self._held[len(self._held) - length :]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
