"""The text of one request as its tokens come: detokenised, without EOS, cut at a stop string."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nextn.runtime.engine.requests import Request
from nextn.runtime.engine.stop_strings import StopStrings
from nextn.runtime.engine.text import Detokenizer


class RequestText:
    """Tokens and text are cut at the same place: the token that completes a stop string is the last."""

    def __init__(self, request: Request, detokenizer: Detokenizer | None, eos_ids: Collection[int]) -> None:
        """Without a detokenizer only the tokens are kept. `eos_ids` are the model's."""
        self._detokenizer = detokenizer
        self._stops = StopStrings(request.stop)
        self._silent = frozenset(() if request.ignore_eos else eos_ids)
        self._parts: list[str] = []
        self.tokens: list[int] = []

    @property
    def stopped(self) -> bool:
        """Whether a stop string was completed; later tokens are dropped."""
        return self._stops.matched

    @property
    def text(self) -> str | None:
        return None if self._detokenizer is None else "".join(self._parts)

    def push(self, tokens: Iterable[int]) -> str:
        """Takes the next tokens and returns the text that became certain."""
        delta = []
        for token in tokens:
            if self.stopped:
                break
            self.tokens.append(token)
            if self._detokenizer is not None and token not in self._silent:
                delta.append(self._stops.push(self._detokenizer.push(token)))
        return self._keep("".join(delta))

    def finish(self) -> str:
        """The text still held back; call once, after the last token."""
        if self._detokenizer is None or self.stopped:
            return ""
        delta = self._stops.push(self._detokenizer.flush())
        return self._keep(delta if self.stopped else delta + self._stops.flush())

    def _keep(self, delta: str) -> str:
        if delta:
            self._parts.append(delta)
        return delta
