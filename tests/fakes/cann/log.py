"""The fake's log and books, as Python values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.fakes.cann.preload import preload


@dataclass(frozen=True)
class Record:
    """One call that the fake noted."""

    kind: str
    """launch, host_function, copy, fill, sync, allocate, free, capture_begin, capture_end, task_group,
    task_update, replay, graph (what GE was asked), model_load, model_execute or model_unload."""
    name: str
    """The kernel, H2D, D2H or D2D, what was waited for, the memory, the step, the model's file."""
    detail: str
    """sync or async of a copy or fill; options of a GE step."""
    nbytes: int
    tasks: int
    """Tasks in the captured graph, operators in the GE graph."""
    stream: int
    error: int
    captured: bool
    """It went to a capturing stream, or would have disturbed a capture that was open."""
    blocking: bool
    """The host waited for the device."""

    @property
    def is_illegal_in_capture(self) -> bool:
        """Whether an NPU would refuse it, or bake this moment's host values into every replay."""
        crosses = self.kind == "copy" and self.name in ("H2D", "D2H")
        return self.captured and (self.blocking or crosses)


class _RawRecord(ctypes.Structure):
    """`fake_cann_record` of runtime/log.h."""

    _fields_ = [
        ("kind", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("detail", ctypes.c_char_p),
        ("bytes", ctypes.c_uint64),
        ("tasks", ctypes.c_uint64),
        ("stream", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("captured", ctypes.c_int32),
        ("blocking", ctypes.c_int32),
    ]


class _Buffer(ctypes.Structure):
    """`fake_cann_buffer` of runtime/model_executor.h."""

    _fields_ = [("place", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


_ModelExecutor = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    *(ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_Buffer), ctypes.c_size_t),
    *(ctypes.POINTER(_Buffer), ctypes.c_size_t),
)

ModelRun = Callable[[str, list[memoryview], list[memoryview]], None]


def _views(buffers: Any, count: int) -> list[memoryview]:
    return [
        memoryview((ctypes.c_ubyte * one.bytes).from_address(one.place)).cast("B") for one in buffers[:count]
    ]


@dataclass(frozen=True)
class Live:
    """What was given out and not given back yet."""

    nbytes: int
    allocations: int
    streams: int
    events: int
    models: int
    model_objects: int
    """Data buffers, datasets and descriptions."""
    contexts: int
    """Those that were made explicitly."""
    captured_graphs: int


class FakeCann:
    """The fake in this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        """For calls that no Python API makes, such as `aclmdlLoadFromFile`."""
        library.fake_cann_log_size.restype = ctypes.c_size_t
        library.fake_cann_log_get.argtypes = [ctypes.c_size_t, ctypes.POINTER(_RawRecord)]

    def records(self) -> list[Record]:
        return [self._record(index) for index in range(self.library.fake_cann_log_size())]

    def clear(self) -> None:
        self.library.fake_cann_log_clear()

    def take(self) -> list[Record]:
        """Everything since the last `take` or `clear`."""
        records = self.records()
        self.clear()
        return records

    def live(self) -> Live:
        names = ("bytes", "allocations", "streams", "events", "models", "model_objects", "contexts")
        names += ("captured_graphs",)
        return Live(*(self._count(f"fake_cann_live_{name}") for name in names))

    @contextmanager
    def failing(self, function: str, nth: int = 1) -> Iterator[Callable[[], bool]]:
        """The `nth` call of a function fails; gives a function that says whether it has.

        Only the functions that a native host calls can: those with `is_to_fail` in runtime/.
        """
        self.library.fake_cann_fail(function.encode(), nth)
        try:
            yield lambda: bool(self.library.fake_cann_has_failed())
        finally:
            self.library.fake_cann_fail(None, 0)

    @contextmanager
    def running_models(self, run: ModelRun) -> Iterator[None]:
        """`run(path, inputs, outputs)` computes each offline model that is executed, on its memory.

        Exceptions do not cross C: the first is raised when this ends.
        """
        failures: list[BaseException] = []

        def guarded(_user: int | None, path: bytes, *sides: Any) -> int:
            inputs, num_inputs, outputs, num_outputs = sides
            try:
                run(path.decode(), _views(inputs, num_inputs), _views(outputs, num_outputs))
            except BaseException as error:
                failures.append(error)
                return 1
            return 0

        executor = _ModelExecutor(guarded)
        self.library.fake_cann_set_model_executor(executor, None)
        try:
            yield
        finally:
            self.library.fake_cann_set_model_executor(None, None)
            if failures:
                raise failures[0]

    @contextmanager
    def strict(self, on: bool = True) -> Iterator[None]:
        """Whether a host wait inside a capture fails with 107030; only logged otherwise."""
        before = self.library.fake_cann_set_strict(on)
        try:
            yield
        finally:
            self.library.fake_cann_set_strict(before)

    def _record(self, index: int) -> Record:
        raw = _RawRecord()
        if self.library.fake_cann_log_get(index, raw):
            raise IndexError(index)
        texts = (raw.kind.decode(), raw.name.decode(), raw.detail.decode())
        flags = (bool(raw.captured), bool(raw.blocking))
        return Record(*texts, raw.bytes, raw.tasks, raw.stream, raw.error, *flags)

    def _count(self, function: str) -> int:
        call: Any = getattr(self.library, function)
        call.restype = ctypes.c_uint64
        return int(call())


@cache
def fake_cann() -> FakeCann:
    """Loads the fake when first asked for."""
    return FakeCann(ctypes.CDLL(str(preload() / "libascendcl.so")))


def kernels(records: Sequence[Record]) -> list[str]:
    """Names of the launched kernels."""
    return [record.name for record in records if record.kind == "launch"]
