"""`Model`: an opened artifact, shared by sessions."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from nextn.runtime import executors
from nextn.runtime.bindings import abi
from nextn.runtime.bindings.executor import Executor, NativeCalls
from nextn.runtime.bindings.integers import integer_argument
from nextn.runtime.bindings.library import find_torch_library, load_library, status_error, text
from nextn.runtime.bindings.session import Session
from nextn.runtime.contract.errors import UsageError
from nextn.runtime.contract.manifest import MANIFEST_FILE, Manifest, parse_manifest

ERROR_BYTES = 2048

MAX_ROUND_SAMPLES = 1 << 24
"""The limit of libnextn."""


@dataclass(frozen=True)
class ModelInfo:
    """Sizes of an opened artifact: `num_steps` is k, lengths in tokens, the last two in bytes."""

    num_steps: int
    slots: int
    num_graphs: int
    vocab_size: int
    max_seq_len: int
    prefill_chunk: int
    weight_bytes: int
    state_bytes: int


class Model:
    """An artifact whose files were checked and whose weights are mapped.

    Close it, or use it as a context manager; closing also closes its sessions. Sessions of one model may
    run on different threads.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, verify_weights: bool = False, device: str | None = None
    ) -> None:
        """Opens `directory`; `verify_weights` also hashes the weights body, reading the whole file.

        `device` is the artifact's own, which None means too; `cpu` also runs exported programs that are meant
        for another one, slowly. Raises UsageError if `directory` is no path or `device` another one,
        ArtifactError if the artifact is damaged or not for this machine, ExecutionError if libnextn or
        libtorch cannot be loaded.
        """
        self.directory = _path(directory)
        library = load_library()
        parameters = library.nextn_model_default_params()
        torch_library = find_torch_library()
        parameters.torch_library = None if torch_library is None else os.fsencode(torch_library)
        parameters.verify_weights = verify_weights
        self._handle = ctypes.c_void_p()
        create_native(
            lambda buffer: library.nextn_model_open(
                os.fsencode(self.directory),
                ctypes.byref(parameters),
                ctypes.byref(self._handle),
                buffer,
                ERROR_BYTES,
            )
        )
        self._close = weakref.finalize(self, library.nextn_model_close, self._handle)
        self._library = library
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        info = library.nextn_model_get_info(self._handle)
        self.info = ModelInfo(**{name: int(getattr(info, name)) for name in ModelInfo.__dataclass_fields__})
        self.manifest: Manifest = parse_manifest(
            text(library.nextn_model_manifest(self._handle)), self.directory / MANIFEST_FILE
        )
        self.device = _device(self.manifest, device)
        self.shared: object = None
        """What executors of the sessions keep in common; `close` drops it."""

    def session(
        self,
        *,
        slots: int = 0,
        speculation: bool = True,
        phases: bool = False,
        round_samples: int | None = None,
        executor: Executor | None = None,
    ) -> Session:
        """A new session with zeroed state.

        `slots` requests are decoded together (0 = the artifact's largest batch size); `speculation=False`
        replays the plain decode graph; `phases` replays the separate phase graphs instead of `round`;
        `round_samples` rounds keep their timings; `executor` runs the graphs in place of the one that the
        artifact's form asks for, serves no other session, and is closed with this one, or at once if there
        will be none. Raises UsageError for values the artifact does not allow, ExecutionError if memory or a
        graph fails, ArtifactError if the graphs are not for this machine, and what the executor raises.
        """
        if not self._close.alive:
            raise UsageError("the model is closed")
        if phases:
            self.check_phases()
        if executor is None:
            executor = executors.make(self)
        calls = None if executor is None else NativeCalls(executor)
        try:
            session = self._session(calls, slots, speculation, phases, round_samples)
        except BaseException:
            if calls is not None:
                calls.close()
            raise
        self._sessions.add(session)
        return session

    def _session(
        self,
        calls: NativeCalls | None,
        slots: int,
        speculation: bool,
        phases: bool,
        round_samples: int | None,
    ) -> Session:
        parameters = self._library.nextn_session_default_params()
        parameters.slots = self.checked_slots(slots)
        parameters.speculation = speculation and self.info.num_steps > 0
        parameters.phases = phases
        if round_samples is not None:
            parameters.round_samples = integer_argument("round_samples", round_samples, 0, MAX_ROUND_SAMPLES)
        if calls is not None:
            parameters.executor = ctypes.pointer(calls.functions)
        handle = ctypes.c_void_p()
        try:
            create_native(
                lambda buffer: self._library.nextn_session_create(
                    self._handle, ctypes.byref(parameters), ctypes.byref(handle), buffer, ERROR_BYTES
                )
            )
        finally:
            if calls is not None:
                calls.raise_failure()
        samples = int(parameters.round_samples)
        return Session(self._library, handle, owner=self, round_samples=samples, calls=calls)

    @property
    def has_phases(self) -> bool:
        """Whether sessions can run the phases of a round one by one."""
        names = {graph.name for graph in self.manifest.graphs}
        return "round" not in names or "verify" in names

    def check_phases(self) -> None:
        """Raises UsageError if the phases were left out when the artifact was compiled."""
        if not self.has_phases:
            raise UsageError(
                "the artifact has no separate phases: they are more than the chip it was compiled for "
                "can capture",
                found=self.manifest.target.soc,
            )

    def checked_slots(self, slots: int) -> int:
        """Raises UsageError unless a session can have so many slots."""
        return integer_argument("slots", slots, 0, self.info.slots)

    def close(self) -> None:
        """Closes the model's sessions, then the model. Closing twice is harmless.

        Raises UsageError, and closes nothing, while a session runs.
        """
        for session in list(self._sessions):
            session.check_idle()
        for session in list(self._sessions):
            session.close()
        self.shared = None
        self._close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _path(directory: object) -> Path:
    try:
        path = os.fsdecode(directory)  # type: ignore[arg-type]
        if b"\0" not in os.fsencode(path):  # C would end the path there
            return Path(path)
    except (TypeError, UnicodeError):
        pass
    found = repr(directory) if isinstance(directory, str | bytes) else type(directory).__name__
    raise UsageError("bad argument", key="directory", expected="a path", found=found)


def _device(manifest: Manifest, wanted: str | None) -> str:
    own = manifest.target.device
    possible = [own] if manifest.target.emit != "pt2" else [own, "cpu"]
    if wanted not in (None, *possible):
        raise UsageError("the artifact is not for this device", expected=" or ".join(possible), found=wanted)
    return wanted or own


def create_native(call: Callable[[ctypes.Array[ctypes.c_char]], int]) -> None:
    """Runs a libnextn constructor that reports through an error buffer; raises what it reports."""
    buffer = ctypes.create_string_buffer(ERROR_BYTES)
    status = call(buffer)
    if status != abi.Status.OK:
        raise status_error(status, text(buffer.value))
