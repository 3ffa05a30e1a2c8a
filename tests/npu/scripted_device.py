"""A session on the fake whose graphs seem to compute: after a replay, results lie where they would be.

No kernel runs on the fake, and device memory is memory of this process. What is written depends on the
control block and the slots as the device holds them, so that it also shows that the host's writes arrived.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from nextn.runtime.contract.blocks import Control, Result
from nextn.runtime.executors.capture.session_graphs import SessionGraphs

TOKEN = 7

LAST_OF_A_ROUND = ("round", "decode", "draft_step")


class ScriptedGraphs(SessionGraphs):
    """Every round emits one token of every live request, until what remains is used up."""

    def launch(self, graph: str) -> None:
        super().launch(graph)
        name = graph.partition(".")[0]
        if name == "prefill":
            self._emit(_words(self._tensors["prompt_slot"]), accepted=-1)
        elif name in LAST_OF_A_ROUND:
            batch = graph.partition(".b")[2]
            self._emit(_words(self._tensors[f"slots_b{batch}"]), accepted=0)

    def _emit(self, slots: ctypes.Array[ctypes.c_int64], accepted: int) -> None:
        control, result = _words(self._tensors["control"]), _words(self._tensors["result"])
        for slot in slots:
            if slot == self._manifest.limits.slots:
                continue
            place = slot * Control.WIDTH + Control.REMAINING.offset
            control[place] -= 1
            row = slot * Result.WIDTH
            result[row + Result.OUT.offset] = TOKEN
            result[row + Result.OUT_COUNT.offset] = 1
            result[row + Result.ACCEPTED.offset] = accepted
            result[row + Result.FINISHED.offset] = int(control[place] == 0)


def _words(tensor: torch.Tensor) -> ctypes.Array[ctypes.c_int64]:
    """Device memory of int64, as the fake has it."""
    assert tensor.dtype == torch.int64
    return (ctypes.c_int64 * tensor.numel()).from_address(tensor.data_ptr())


def injected(run: Callable[[], object], extra: Callable[[], object]) -> Callable[[], object]:
    """A program that also does `extra` while it is captured."""

    def both() -> object:
        if torch.npu.is_current_stream_capturing():
            extra()
        return run()

    return both
