"""Drives libnextn through ctypes in a process of its own: reads operations as JSON, writes what each gave.

Its own process because a stand-in libtorch must not meet the real one, and so that a crash is seen as one.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
from typing import Any

from nextn.runtime.bindings import abi

NO_CALLBACK = abi.TokenCallback()


def plain(structure: c.Structure) -> dict[str, Any]:
    """The fields of a C struct as JSON values."""
    values = ((name, getattr(structure, name)) for name, *_ in structure._fields_)
    return {name: list(value) if isinstance(value, c.Array) else value for name, value in values}


class Host:
    """One model and its sessions; each method is an operation that a test may name."""

    def __init__(self, library: str) -> None:
        self.lib = c.CDLL(library)
        abi.declare(self.lib)
        self.model = c.c_void_p()
        self.sessions: list[c.c_void_p] = []
        self.torch_library: str | None = None

    def version(self) -> dict[str, Any]:
        return {"version": self.lib.nextn_version().decode()}

    def open(self, artifact: str | None, torch_library: str | None = None, **params: Any) -> dict[str, Any]:
        values = self.lib.nextn_model_default_params()
        self.torch_library = torch_library
        values.torch_library = torch_library.encode() if torch_library else None
        return self._create(
            self.lib.nextn_model_open, artifact and artifact.encode(), values, self.model, params
        )

    def create(self, **params: Any) -> dict[str, Any]:
        session = c.c_void_p()
        self.sessions.append(session)
        values = self.lib.nextn_session_default_params()
        return self._create(self.lib.nextn_session_create, self.model, values, session, params)

    def _create(
        self, function: Any, owner: Any, values: Any, handle: c.c_void_p, params: Any
    ) -> dict[str, Any]:
        for name, value in params.items():
            setattr(values, name, value)
        error = c.create_string_buffer(512)
        status = function(owner, c.byref(values), c.byref(handle), error, len(error))
        return {
            "status": status,
            "error": error.value.decode(errors="replace"),
            "made": handle.value is not None,
        }

    def submit(self, prompt: list[int] | None, on: int = 0, **fields: Any) -> dict[str, Any]:
        request = self.lib.nextn_request_default()
        if prompt is not None:
            request.prompt = (c.c_int64 * max(len(prompt), 1))(*prompt)
            request.prompt_length = len(prompt)
        for name, value in fields.items():
            setattr(request, name, value)
        identifier = c.c_uint64()
        status = self.lib.nextn_session_submit(self.sessions[on], c.byref(request), c.byref(identifier))
        return self._outcome(status, on) | {"id": identifier.value}

    def run(
        self,
        on: int = 0,
        abort: int | None = None,
        interrupt_after: int | None = None,
        misuse: bool = False,
    ) -> dict[str, Any]:
        """Runs to the end; the callback may abort a request, interrupt the run, or misuse the session."""
        events: list[tuple[int, list[int]]] = []
        misuse_status: list[int] = []

        def on_tokens(_user: Any, request: int, tokens: Any, count: int) -> bool:
            events.append((request, tokens[:count]))
            if interrupt_after is not None and len(events) == interrupt_after:
                self.lib.nextn_session_interrupt(self.sessions[on])
            if misuse:
                misuse_status.append(self.submit([1], on)["status"])
                misuse_status.append(self.lib.nextn_session_run(self.sessions[on], NO_CALLBACK, None))
                self.lib.nextn_session_release(self.sessions[on], request)
                self.lib.nextn_session_destroy(self.sessions[on])
            return request != abort

        status = self.lib.nextn_session_run(self.sessions[on], abi.TokenCallback(on_tokens), None)
        return self._outcome(status, on) | {"events": events, "misuse": misuse_status}

    def turn(self, on: int = 0) -> dict[str, Any]:
        busy = c.c_bool()
        status = self.lib.nextn_session_turn(self.sessions[on], NO_CALLBACK, None, c.byref(busy))
        return self._outcome(status, on) | {"busy": busy.value}

    def run_until_finished(self, on: int = 0) -> dict[str, Any]:
        busy = c.c_bool()
        status = self.lib.nextn_session_run_until_finished(
            self.sessions[on], NO_CALLBACK, None, c.byref(busy)
        )
        return self._outcome(status, on) | {"busy": busy.value}

    def interrupt(self, on: int = 0) -> dict[str, Any]:
        self.lib.nextn_session_interrupt(self.sessions[on])
        return {}

    def result(self, identifier: int, on: int = 0) -> dict[str, Any]:
        view = abi.NativeResult()
        status = self.lib.nextn_session_result(self.sessions[on], identifier, c.byref(view))
        if status != 0:
            return self._outcome(status, on)
        values = plain(view)
        values["tokens"] = view.tokens[: view.num_tokens]
        values["accept_lens"] = view.accept_lens[: view.num_rounds]
        return self._outcome(status, on) | values

    def finished(self, on: int = 0) -> dict[str, Any]:
        """Every id that next_finished gives now."""
        ids = []
        identifier = c.c_uint64()
        while self.lib.nextn_session_next_finished(self.sessions[on], c.byref(identifier)):
            ids.append(identifier.value)
        return {"ids": ids}

    def release(self, identifier: int, on: int = 0) -> dict[str, Any]:
        self.lib.nextn_session_release(self.sessions[on], identifier)
        return {}

    def metrics(self, on: int = 0) -> dict[str, Any]:
        return plain(self.lib.nextn_session_get_metrics(self.sessions[on]))

    def round_times(self, capacity: int, on: int = 0) -> dict[str, Any]:
        times = (abi.NativeRoundTimes * capacity)()
        count = self.lib.nextn_session_round_times(self.sessions[on], times, capacity)
        return {"rounds": [plain(entry) for entry in times[:count]]}

    def state(self, name: str, on: int = 0) -> dict[str, Any]:
        size = c.c_size_t()
        pointer = self.lib.nextn_session_state(self.sessions[on], name.encode(), c.byref(size))
        if pointer is None:
            return {"words": None}
        return {"words": list((c.c_int64 * (size.value // 8)).from_address(pointer))}

    def memory(self) -> dict[str, Any]:
        """Anonymous memory of this process, how the weights are mapped, and how many libtorch it holds."""
        anonymous = weights_anonymous = weights_mappings = 0
        libraries = set()
        with open("/proc/self/smaps", encoding="utf-8") as maps:
            for line in maps:
                fields = line.split()
                if not fields[0].endswith(":"):
                    name = fields[-1]
                    weights_mappings += name.endswith("weights.safetensors")
                    libraries |= {name} if name.endswith("libtorch_cpu.so") else set()
                elif fields[0] == "Anonymous:":
                    anonymous += int(fields[1])
                    weights_anonymous += int(fields[1]) if name.endswith("weights.safetensors") else 0
        return {
            "anonymous_kb": anonymous,
            "weights_anonymous_kb": weights_anonymous,
            "weights_mappings": weights_mappings,
            "libtorch_files": len(libraries),
        }

    def import_torch(self) -> dict[str, Any]:
        import torch

        return {"version": torch.__version__}

    def null_arguments(self) -> dict[str, Any]:
        """Calls with NULL for every object."""
        lib, null = self.lib, None
        lib.nextn_model_close(null)
        lib.nextn_session_destroy(null)
        lib.nextn_session_interrupt(null)
        statuses = [
            lib.nextn_model_open(null, null, null, null, 0),
            lib.nextn_session_create(null, null, null, null, 0),
            lib.nextn_session_submit(null, null, null),
            lib.nextn_session_run(null, NO_CALLBACK, null),
            lib.nextn_session_run_until_finished(null, NO_CALLBACK, null, null),
            lib.nextn_session_turn(null, NO_CALLBACK, null, null),
            lib.nextn_session_result(null, 1, null),
        ]
        return {"statuses": statuses}

    def destroy(self, on: int = 0) -> dict[str, Any]:
        self.lib.nextn_session_destroy(self.sessions[on])
        return {}

    def close(self) -> dict[str, Any]:
        self.lib.nextn_model_close(self.model)
        return {}

    def live_tensors(self) -> dict[str, Any]:
        return {"count": c.CDLL(self.torch_library).fake_torch_live_tensors()}

    def fake_threads(self) -> dict[str, Any]:
        return {"count": c.CDLL(self.torch_library).fake_torch_threads()}

    def _outcome(self, status: int, on: int) -> dict[str, Any]:
        error = self.lib.nextn_session_last_error(self.sessions[on]).decode() if status else ""
        return {"status": status, "error": error}


def main() -> None:
    host = Host(sys.argv[1])
    outcomes = [getattr(host, name)(**arguments) for name, arguments in json.load(sys.stdin)]
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
