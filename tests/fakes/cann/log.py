"""The fake's log and books, as Python values."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
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
        names = ("bytes", "allocations", "streams", "events", "models", "model_objects")
        return Live(*(self._count(f"fake_cann_live_{name}") for name in names))

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
