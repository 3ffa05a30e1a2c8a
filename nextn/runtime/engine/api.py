"""`load` and `Engine`: an artifact ready to continue prompts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from nextn.runtime import executors
from nextn.runtime.bindings.integers import as_integer
from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session
from nextn.runtime.contract.errors import RequestError, UsageError
from nextn.runtime.engine.artifact_files import open_tokenizer
from nextn.runtime.engine.completion import Completion
from nextn.runtime.engine.generation import CompletionCallback, DeltaCallback, Generation
from nextn.runtime.engine.interruptible import run_interruptibly
from nextn.runtime.engine.requests import Request, RequestReader
from nextn.runtime.engine.run_metrics import RunMetrics, run_metrics, since

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a request with the fields of the JSON form."""


@dataclass(frozen=True)
class Run:
    """What `Engine.run` returns: completions in the order of the requests, and the run's figures."""

    completions: tuple[Completion, ...]
    metrics: RunMetrics


def load(
    directory: str | os.PathLike[str],
    *,
    speculation: bool = True,
    phases: bool = False,
    slots: int = 0,
    verify_weights: bool = False,
    executor: str | None = None,
    device: str | None = None,
) -> Engine:
    """Opens the artifact in `directory`.

    `speculation=False` replays the plain decode graph; `phases` replays verify, accept, draft extend and
    draft steps as separate graphs, with their timings; `slots` requests are decoded together (0 = the
    artifact's largest batch size); `verify_weights` also hashes the weights body; `executor` insists on what
    runs the graphs, "native" for libnextn itself; `device` is as for `Model`. Raises ArtifactError,
    UsageError or ExecutionError.
    """
    model = Model(directory, verify_weights=verify_weights, device=device)
    return Engine(model, speculation=speculation, phases=phases, slots=slots, executor=executor)


class Engine:
    """An artifact with a tokenizer and a session. Made by `load`; a context manager.

    `generate` and `run` may be called from any thread, one call at a time: a second one waits.
    """

    def __init__(
        self,
        model: Model,
        *,
        speculation: bool = True,
        phases: bool = False,
        slots: int = 0,
        executor: str | None = None,
    ) -> None:
        executors.check(model, executor)
        self.model = model
        self.num_steps = model.info.num_steps if speculation else 0
        if phases and self.num_steps == 0:
            raise UsageError("phases need speculation", expected="an artifact with k >= 1", found="k = 0")
        if phases:
            model.check_phases()
        self.tokenizer, self._tokenizer_fault = open_tokenizer(model.directory, model.manifest)
        self._phases = phases
        self._slots = model.checked_slots(slots)
        self._session: Session | None = None
        self._one_call = threading.Lock()
        self._generation: Generation | None = None
        self._closed = False
        self._threads: set[int] = set()  # of the call in progress: its caller's and its worker's

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        on_delta: DeltaCallback | None = None,
    ) -> list[Completion]:
        """Continues one prompt or several and returns their completions in the order of the prompts.

        A prompt is text, token ids, or a mapping with the fields of a JSON request, whose settings win
        over the arguments. `temperature` 0 is greedy; `max_new_tokens` is clipped to what the artifact's
        `max_seq_len` leaves. `on_delta` sees tokens and text as they come and may return False to abort
        that request; it runs on a helper thread if `generate` is called on the main one.

        Raises RequestError for a bad request (before anything runs), ExecutionError if a graph fails,
        KeyboardInterrupt on Ctrl-C.
        """
        reader = self.request_reader(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            stop=tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else stop,
            ignore_eos=ignore_eos,
        )
        requests = [
            reader.read(_fields(prompt), default_id=index) for index, prompt in enumerate(_as_list(prompts))
        ]
        _refuse_repeated_ids(requests)
        completions = self.run(requests, on_delta=on_delta).completions
        for completion in completions:
            if completion.error is not None:
                raise RequestError(completion.error.message, key=str(completion.id))
        return list(completions)

    def request_reader(self, **defaults: Any) -> RequestReader:
        """A reader that checks requests against this artifact. Raises RequestError for a bad default."""
        info = self.model.info
        return RequestReader(
            vocab_size=info.vocab_size,
            max_seq_len=info.max_seq_len,
            tokenizer=self.tokenizer,
            tokenizer_fault=self._tokenizer_fault,
            defaults=defaults,
        )

    def run(
        self,
        requests: Sequence[Request],
        *,
        on_delta: DeltaCallback | None = None,
        on_completion: CompletionCallback | None = None,
    ) -> Run:
        """Runs checked requests; `on_completion` sees each as it completes, on the thread of `on_delta`.

        A request the session refuses becomes a completion with `error`. Raises what `generate` does.
        """
        self._refuse_own_callback()
        for name, callback in (("on_delta", on_delta), ("on_completion", on_completion)):
            if callback is not None and not callable(callback):
                raise UsageError(
                    "bad argument", key=name, expected="a function", found=type(callback).__name__
                )
        with self._one_call:
            self._threads = {threading.get_ident()}
            try:
                return self._run(requests, on_delta, on_completion)
            finally:
                self._generation, self._threads = None, set()

    def close(self) -> None:
        """Ends a call in progress on another thread after its current turn, then frees everything.

        Raises UsageError in a callback of the engine's own call.
        """
        self._refuse_own_callback()
        self._closed = True
        generation = self._generation
        if generation is not None:
            generation.interrupt()
        with self._one_call:
            self._discard_session()
            self.model.close()

    def _refuse_own_callback(self) -> None:
        if threading.get_ident() in self._threads:
            raise UsageError("called from a callback of the same engine")

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        requests: Sequence[Request],
        on_delta: DeltaCallback | None,
        on_completion: CompletionCallback | None,
    ) -> Run:
        session = self._open_session()
        generation = Generation(
            session,
            num_steps=self.num_steps,
            tokenizer=self.tokenizer,
            eos_ids=self.model.manifest.model.eos_token_ids,
            on_delta=on_delta,
            on_completion=on_completion,
        )
        self._generation = generation

        def work() -> bool:
            self._threads.add(threading.get_ident())
            return generation.run(requests)

        before = session.metrics()
        started = time.perf_counter()
        try:
            if not run_interruptibly(work, generation.interrupt):
                raise (
                    UsageError("the engine was closed during the call") if self._closed else KeyboardInterrupt
                )
        except BaseException:
            # What is left in the session after a failure is unknown; the next run gets a new one.
            self._discard_session()
            raise
        elapsed_ms = (time.perf_counter() - started) * 1000
        counters = since(before, session.metrics())
        metrics = run_metrics(
            generation.completions,
            counters,
            session.round_times(last=counters.num_rounds),
            num_steps=self.num_steps,
            phases=self._phases,
            elapsed_ms=elapsed_ms,
        )
        return Run(tuple(generation.completions), metrics)

    def _open_session(self) -> Session:
        if self._session is None:
            self._session = self.model.session(
                slots=self._slots, speculation=self.num_steps > 0, phases=self._phases
            )
        return self._session

    def _discard_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Any]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    items = _listed(prompts)
    if items is None:
        raise RequestError(
            "bad prompts", key="prompts", expected="text, token ids, or a list", found=type(prompts).__name__
        )
    ids = bool(items) and all(as_integer(item) is not None for item in items)
    return [items] if ids else items


def _fields(prompt: Any) -> Mapping[str, Any]:
    if isinstance(prompt, Mapping):
        return prompt
    if isinstance(prompt, str):
        return {"prompt": prompt}
    ids = _listed(prompt)
    return {"token_ids": prompt if ids is None else ids}


def _listed(value: Any) -> list[Any] | None:
    """The items of a list, an array or an iterator, which can be looked at only once; None for others.

    Bytes are no ids, though Python iterates them as integers.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return None
    try:
        return list(value)
    except TypeError:
        return None


def _refuse_repeated_ids(requests: Sequence[Request]) -> None:
    seen: set[int | str] = set()
    for request in requests:
        if request.id in seen:
            raise RequestError("bad request", key="id", expected="an id of its own", found=request.id)
        seen.add(request.id)
