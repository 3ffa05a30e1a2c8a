"""Runs requests through a session and turns what comes out into completions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from nextn.runtime.bindings.session import Session
from nextn.runtime.contract.errors import RequestError
from nextn.runtime.engine.completion import Completion, failed
from nextn.runtime.engine.metrics import RequestMetrics
from nextn.runtime.engine.request_text import RequestText
from nextn.runtime.engine.requests import Request, RequestId
from nextn.runtime.engine.text import Tokenizer


@dataclass(frozen=True)
class Delta:
    """What one round (or prefill) added to a request. `text` may lag behind the tokens, and is None
    without a tokenizer; the last delta of a request can carry text alone."""

    request: RequestId
    token_ids: tuple[int, ...]
    text: str | None


DeltaCallback = Callable[[Delta], bool | None]
"""Returning False aborts that request."""

CompletionCallback = Callable[[Completion], None]


@dataclass(frozen=True)
class _Live:
    place: int
    request: Request
    text: RequestText


class Generation:
    """One run of some requests. Requests in the session are released as they complete."""

    def __init__(
        self,
        session: Session,
        *,
        num_steps: int,
        tokenizer: Tokenizer | None,
        eos_ids: Collection[int],
        on_delta: DeltaCallback | None,
        on_completion: CompletionCallback | None,
    ) -> None:
        """`num_steps` is the k the session runs with, 0 for plain decoding; `eos_ids` are the model's."""
        self._session = session
        self._num_steps = num_steps
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._on_delta = on_delta
        self._on_completion = on_completion
        self._live: dict[int, _Live] = {}
        self._interrupted = False
        self._done: dict[int, Completion] = {}

    @property
    def completions(self) -> list[Completion]:
        """Of all requests that completed, in the order of the requests."""
        return [self._done[place] for place in sorted(self._done)]

    def run(self, requests: Sequence[Request]) -> bool:
        """Runs all to their end; False if interrupted, with what was still unfinished reported as "abort".

        Python runs between rounds only where it is needed: in the token callback, for stop strings and
        `on_delta`. Requests that report as they complete return to Python once each.
        """
        for place, request in enumerate(requests):
            self._submit(place, request)
        needs_tokens = self._on_delta is not None or any(live.request.stop for live in self._live.values())
        callback = self._on_tokens if needs_tokens else None
        finished = True
        if self._on_completion is not None and len(self._live) > 1:
            while not self._interrupted and self._session.run_until_finished(callback):
                self._complete_finished()
            finished = not self._interrupted
        elif self._live:
            finished = self._session.run(callback)
        self._complete_finished()
        for native_id in list(self._live):  # interrupted between turns
            self._complete(native_id)
        return finished

    def interrupt(self) -> None:
        """Ends `run` after the current turn; called from another thread."""
        self._interrupted = True
        self._session.interrupt()

    def _submit(self, place: int, request: Request) -> None:
        try:
            native_id = self._session.submit(
                request.prompt,
                max_new_tokens=request.max_new_tokens,
                temperature=request.temperature,
                seed=request.seed,
                ignore_eos=request.ignore_eos,
            )
        except RequestError as error:
            self._report(place, failed(request.id, error))
            return
        detokenizer = None if self._tokenizer is None else self._tokenizer.detokenizer()
        self._live[native_id] = _Live(place, request, RequestText(request, detokenizer, self._eos_ids))

    def _on_tokens(self, native_id: int, tokens: list[int]) -> bool:
        live = self._live[native_id]
        if self._on_delta is None and not live.request.stop:
            return True
        before = len(live.text.tokens)
        text = live.text.push(tokens)
        return self._deliver(live, live.text.tokens[before:], text) and not live.text.stopped

    def _deliver(self, live: _Live, tokens: Sequence[int], text: str) -> bool:
        if self._on_delta is None:
            return True
        shown = None if self._tokenizer is None else text
        return self._on_delta(Delta(live.request.id, tuple(tokens), shown)) is not False

    def _complete_finished(self) -> None:
        while (native_id := self._session.next_finished()) is not None:
            self._complete(native_id)

    def _complete(self, native_id: int) -> None:
        result = self._session.result(native_id)
        live = self._live.pop(native_id)
        live.text.push(result.tokens[len(live.text.tokens) :])
        tail = live.text.finish()
        if tail:
            self._deliver(live, (), tail)
        if result.finish_reason is not None:
            self._session.release(native_id)
        self._report(
            live.place,
            Completion(
                id=live.request.id,
                prompt_tokens=len(live.request.prompt),
                token_ids=tuple(live.text.tokens),
                text=live.text.text,
                finish_reason="stop" if live.text.stopped else result.finish_reason or "abort",
                accept_lens=result.accept_lens,
                metrics=RequestMetrics.of(result, self._num_steps),
            ),
        )

    def _report(self, place: int, completion: Completion) -> None:
        self._done[place] = completion
        if self._on_completion is not None:
            self._on_completion(completion)
