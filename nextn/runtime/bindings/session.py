"""`Session`: requests decoded together over one state, one thread at a time."""

from __future__ import annotations

import ctypes
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from nextn.runtime.bindings import abi
from nextn.runtime.bindings.executor import NativeCalls
from nextn.runtime.bindings.integers import integer_argument
from nextn.runtime.bindings.library import status_error, text
from nextn.runtime.contract.errors import ExecutionError, RequestError, UsageError

SessionFinish = Literal["stop", "length", "abort"]

TokensCallback = Callable[[int, list[int]], bool]
"""(native request id, tokens of one round) -> False to abort that request."""

_FINISH: dict[int, SessionFinish | None] = {
    abi.NativeFinish.UNFINISHED: None,
    abi.NativeFinish.STOP: "stop",
    abi.NativeFinish.LENGTH: "length",
    abi.NativeFinish.ABORT: "abort",
}


@dataclass(frozen=True)
class SessionResult:
    """What one request produced so far; times in milliseconds since submit.

    `accept_lens` holds, per round, the accepted drafts + 1 before trimming by EOS or length;
    `finish_reason` is None while the request is unfinished.
    """

    tokens: tuple[int, ...]
    accept_lens: tuple[int, ...]
    finish_reason: SessionFinish | None
    prompt_tokens: int
    ttft_ms: float
    e2e_ms: float


@dataclass(frozen=True)
class SessionMetrics:
    """Counters since the session was created; the fields are those of `nextn_metrics`."""

    num_rounds: int
    num_row_rounds: int
    num_accepted: int
    accepted_at_least: tuple[int, ...]
    num_graph_launches: int
    num_prefill_launches: int
    num_draft_forwards_prefill: int
    num_draft_forwards_extend: int
    num_draft_forwards_step: int
    prefill_ms: float
    decode_ms: float


@dataclass(frozen=True)
class RoundTimes:
    """Microseconds of one round; the phase fields are 0 without `phases`."""

    graph_us: float
    host_us: float
    verify_us: float
    accept_us: float
    extend_us: float
    step_us: float


class Session:
    """Made by `Model.session`; close it, or use it as a context manager.

    A closed session raises UsageError. Exceptions raised in a callback abort the run and come out of
    `run` or `turn`.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        handle: ctypes.c_void_p,
        *,
        owner: object,
        round_samples: int,
        calls: NativeCalls | None = None,
    ) -> None:
        self._library = library
        self._native = handle
        self._owner = owner  # the model must outlive its sessions
        self._round_samples = round_samples
        self._calls = calls
        self._close = weakref.finalize(self, _destroy, library, handle, calls)
        self._views: list[memoryview] = []
        self._run_lock = threading.Lock()

    @property
    def _handle(self) -> ctypes.c_void_p:
        if not self._close.alive:
            raise UsageError("the session is closed")
        return self._native

    def submit(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        ignore_eos: bool = False,
    ) -> int:
        """Queues a request and returns its id. Raises RequestError for bad values."""
        request = self._library.nextn_request_default()
        ids = _int64("prompt", prompt)
        buffer = (ctypes.c_int64 * len(ids)).from_buffer(ids)
        request.prompt = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_int64))
        request.prompt_length = len(ids)
        request.max_new_tokens = _int64("max_new_tokens", [max_new_tokens])[0]
        request.temperature = _double("temperature", temperature)
        request.seed = _int64("seed", [seed])[0]
        request.ignore_eos = ignore_eos
        native_id = ctypes.c_uint64()
        status = self._library.nextn_session_submit(
            self._handle, ctypes.byref(request), ctypes.byref(native_id)
        )
        if status == abi.Status.USAGE:
            raise RequestError(self._last_error())
        self._check(status)
        return native_id.value

    def run(self, callback: TokensCallback | None = None) -> bool:
        """Decodes until every queued request is finished, with the GIL released.

        Without a callback no Python runs in the loop. Returns False if `interrupt` ended the run early.
        Raises ExecutionError if a graph fails.
        """
        run = self._library.nextn_session_run
        return self._guarded(callback, lambda native: run(self._handle, native, None))

    def turn(self, callback: TokensCallback | None = None) -> bool:
        """One scheduling turn: at most one prefill chunk, then one round. Returns whether work is left.

        Raises ExecutionError if a graph fails.
        """
        return self._advance(self._library.nextn_session_turn, callback)

    def run_until_finished(self, callback: TokensCallback | None = None) -> bool:
        """Decodes until `next_finished` has a request to give; returns whether work is left.

        The native counterpart of `run` for callers that report each request as it finishes. Raises
        ExecutionError if a graph fails.
        """
        return self._advance(self._library.nextn_session_run_until_finished, callback)

    def run_for(self, milliseconds: float, callback: TokensCallback | None = None) -> bool:
        """As `run_until_finished`, and also returns after the turn in which `milliseconds` pass.

        Python handles signals, and a host can submit and cancel, between such runs. Raises ExecutionError if
        a graph fails.
        """
        limit = ctypes.c_double(milliseconds)
        run = self._library.nextn_session_run_for
        return self._advance(lambda handle, *rest: run(handle, limit, *rest), callback)

    def cancel(self, request: int) -> None:
        """Ends a request between runs, queued, in prefill or decoding; a finished one stays as it is.

        It finishes with "abort" and the tokens it has. Raises UsageError for an unknown id, and during a run.
        """
        self._check(self._library.nextn_session_cancel(self._handle, _native_id(request)))

    def interrupt(self) -> None:
        """Makes a `run` in progress on another thread return after its current turn."""
        if self._close.alive:
            self._library.nextn_session_interrupt(self._native)

    def result(self, request: int) -> SessionResult:
        """A copy of what `request` produced so far. Raises UsageError for an unknown id."""
        native = abi.NativeResult()
        self._check(
            self._library.nextn_session_result(self._handle, _native_id(request), ctypes.byref(native))
        )
        return SessionResult(
            tokens=tuple(native.tokens[: native.num_tokens]) if native.num_tokens else (),
            accept_lens=tuple(native.accept_lens[: native.num_rounds]) if native.num_rounds else (),
            finish_reason=_FINISH[native.finish_reason],
            prompt_tokens=native.prompt_tokens,
            ttft_ms=native.ttft_ms,
            e2e_ms=native.e2e_ms,
        )

    def next_finished(self) -> int | None:
        """The id of a request that finished, each once and in the order they finished; None for no more."""
        request = ctypes.c_uint64()
        found = self._library.nextn_session_next_finished(self._handle, ctypes.byref(request))
        return request.value if found else None

    def release(self, request: int) -> None:
        """Frees the result of a finished request."""
        self._library.nextn_session_release(self._handle, _native_id(request))

    def metrics(self) -> SessionMetrics:
        native = self._library.nextn_session_get_metrics(self._handle)
        values = {name: getattr(native, name) for name in SessionMetrics.__dataclass_fields__}
        values["accepted_at_least"] = tuple(values["accepted_at_least"])
        return SessionMetrics(**values)

    def round_times(self, last: int | None = None) -> list[RoundTimes]:
        """Timings of the `last` rounds, at most as many as the session keeps, oldest first."""
        buffer = (abi.NativeRoundTimes * self._round_samples)()
        count = self._library.nextn_session_round_times(self._handle, buffer, self._round_samples)
        wanted = buffer[max(0, count - last) : count] if last is not None else buffer[:count]
        names = RoundTimes.__dataclass_fields__
        return [RoundTimes(**{name: getattr(entry, name) for name in names}) for entry in wanted]

    def state(self, name: str) -> memoryview:
        """Bytes of a state buffer as the last graph left it; `close` releases the view.

        Where graphs run in host memory the view is writable and shared with them; else it is a copy, which
        the next call for the same buffer brings up to date. Raises UsageError if the artifact has no such
        buffer, and what the executor raises.
        """
        size = ctypes.c_size_t()
        address = self._library.nextn_session_state(self._handle, name.encode(), ctypes.byref(size))
        self._raise_executor_failure()
        if not size.value:
            raise UsageError("no such state buffer", key=name)
        if not address:
            raise ExecutionError(self._last_error())
        view = memoryview((ctypes.c_ubyte * size.value).from_address(address)).cast("B")
        self._views.append(view)
        return view

    def close(self) -> None:
        """Closes the executor, then frees the state.

        Raises UsageError during a run, whose callbacks and threads still use it, and BufferError if an
        array still uses a state view.
        """
        self.check_idle()
        if self._calls is not None:
            self._calls.close()
        while self._views:
            self._views[-1].release()
            self._views.pop()
        self._close()

    def check_idle(self) -> None:
        """Raises UsageError while a run is in progress, on this thread or another."""
        if self._run_lock.locked():
            raise UsageError("the session is running: end its run first")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _advance(self, part: Any, callback: TokensCallback | None) -> bool:
        busy = ctypes.c_bool()
        self._guarded(callback, lambda native: part(self._handle, native, None, ctypes.byref(busy)))
        return busy.value

    def _guarded(self, callback: TokensCallback | None, call: Callable[[Any], int]) -> bool:
        """Runs `call` with `callback` made safe for C; returns whether it ran to its end."""
        failures: list[BaseException] = []
        native = abi.TokenCallback() if callback is None else self._native_callback(callback, failures)
        if not self._run_lock.acquire(blocking=False):
            raise UsageError("the session is running already")
        try:
            status = call(native)
        finally:
            self._run_lock.release()
        if failures:
            raise failures[0]
        self._raise_executor_failure()
        if status == abi.Status.INTERRUPTED:
            return False
        self._check(status)
        return True

    def _native_callback(self, callback: TokensCallback, failures: list[BaseException]) -> Any:
        """ctypes drops exceptions of callbacks: keep the first one in `failures` and stop the run instead."""

        def guarded(_user: int | None, request: int, tokens: Any, count: int) -> bool:
            if failures:
                return False
            try:
                return callback(request, tokens[:count])
            except BaseException as error:
                failures.append(error)
                self.interrupt()
                return False

        return abi.TokenCallback(guarded)

    def _raise_executor_failure(self) -> None:
        if self._calls is not None:
            self._calls.raise_failure()

    def _check(self, status: int) -> None:
        if status != abi.Status.OK:
            raise status_error(status, self._last_error())

    def _last_error(self) -> str:
        return text(self._library.nextn_session_last_error(self._handle))


def _destroy(library: ctypes.CDLL, handle: ctypes.c_void_p, calls: NativeCalls | None) -> None:
    if calls is not None:
        calls.close()
    library.nextn_session_destroy(handle)


def _int64(field: str, values: Iterable[int]) -> array[int]:
    """The values as C integers; ctypes would wrap those that do not fit."""
    try:
        return array("q", values)
    except (TypeError, OverflowError) as error:
        raise RequestError("bad request", key=field, expected="64-bit integers", found=error) from error


def _double(field: str, value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError("bad request", key=field, expected="a number", found=error) from error


def _native_id(request: int) -> int:
    return integer_argument("request", request, 0, 2**64 - 1)
