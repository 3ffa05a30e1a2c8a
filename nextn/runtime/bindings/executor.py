"""`Executor`: what runs the graphs of an artifact whose form libnextn does not run itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from nextn.runtime.bindings import abi


class Executor(Protocol):
    """Runs the graphs of one session, which calls it from its native loop and closes it.

    The calls come on the thread that makes, runs or looks into the session. An exception comes out of the
    session's method that caused the call; the session's state is then lost.
    """

    def attach(self, memory: Mapping[str, memoryview]) -> None:
        """First and once: the bytes of every tensor of the manifest, by name.

        Weights are read-only. State and inputs start as zeros; what the host writes into them, now or later,
        comes through `write`. The memory lasts until `close` returns.
        """

    def load(self, graph: str) -> None:
        """The graph, for example "round.b4", will be launched: compile, capture, warm up.

        State must be afterwards as it was before.
        """

    def write(self, name: str, start: int, stop: int) -> None:
        """The host changed these bytes of a state buffer or an input; later launches must see them."""

    def launch(self, graph: str) -> None:
        """May return before the graph has run."""

    def wait(self) -> None:
        """Waits for every launched graph."""

    def read(self, name: str) -> None:
        """Waits, then makes the memory of this state buffer current."""

    def close(self) -> None:
        """Frees everything. Comes without `attach` if the session could not be made."""


class NativeCalls:
    """An executor as C calls it. Keeps the first exception, which must not cross C, for `raise_failure`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._failure: BaseException | None = None
        self._closed = False
        self.functions = abi.NativeExecutor(
            struct_size=ctypes.sizeof(abi.NativeExecutor),
            attach=abi.AttachFunction(self._attach),
            load=abi.NamedFunction(self._named(executor.load)),
            write=abi.WriteFunction(self._write),
            launch=abi.NamedFunction(self._named(executor.launch)),
            wait=abi.WaitFunction(self._wait),
            read=abi.NamedFunction(self._named(executor.read)),
        )

    def raise_failure(self) -> None:
        """Raises what the executor raised since the last call, if anything."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Closes the executor, once."""
        if not self._closed:
            self._closed = True
            self._executor.close()

    def _guarded(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except BaseException as error:
            self._failure = self._failure or error
            return False
        return True

    def _attach(self, _user: int | None, tensors: Any, count: int) -> bool:
        return self._guarded(
            lambda: self._executor.attach({_text(one.name): _view(one) for one in tensors[:count]})
        )

    def _write(self, _user: int | None, name: bytes, offset: int, num_bytes: int) -> bool:
        return self._guarded(lambda: self._executor.write(_text(name), offset, offset + num_bytes))

    def _wait(self, _user: int | None) -> bool:
        return self._guarded(self._executor.wait)

    def _named(self, method: Callable[[str], None]) -> Callable[[int | None, bytes], bool]:
        return lambda _user, name: self._guarded(lambda: method(_text(name)))


def _text(name: bytes) -> str:
    return name.decode()


def _view(tensor: abi.NativeTensor) -> memoryview:
    view = memoryview((ctypes.c_ubyte * tensor.num_bytes).from_address(tensor.data)).cast("B")
    return view.toreadonly() if tensor.kind == abi.TensorKind.WEIGHT else view
