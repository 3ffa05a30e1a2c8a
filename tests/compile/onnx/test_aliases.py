"""Which presents may take the memory of their past: by data flow, and as ONNX Runtime really executes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from nextn.compile.targets.functional import FunctionalGraph
from nextn.compile.targets.onnx.descriptions import writable_in_place
from nextn.graphs.eager_session import EagerRequest, GraphKey
from nextn.runtime.contract.graph_spec import TensorSpec
from nextn.runtime.contract.onnx_names import IN_PLACE, past, present
from tests.compile.onnx.run import model_of, open_file, single_thread
from tests.onnx_sessions import KEYS, Exported

aten: Any = torch.ops.aten

RING, INDEX, ROWS = torch.zeros(4, 3), torch.tensor([0, 1]), torch.ones(2, 3)


def graph_of(function: Any, *written: str) -> FunctionalGraph:
    """Of `ring`, `index` and `rows`; `function` gives the last values of those `written`."""
    traced = make_fx(lambda ring, index, rows: function(ring, index, rows), tracing_mode="fake")
    specs = (
        TensorSpec("ring", "state", "float32", (4, 3)),
        TensorSpec("index", "input", "int64", (2,)),
        TensorSpec("rows", "state", "float32", (2, 3)),
    )
    return FunctionalGraph(traced(RING, INDEX, ROWS).graph, specs, written)


def read(buffer: Tensor, index: Tensor) -> Tensor:
    return aten.index.Tensor(buffer, [index])


def write(buffer: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    return aten.index_put.default(buffer, [index], rows)


def test_a_write_alone() -> None:
    assert writable_in_place(graph_of(lambda ring, i, rows: (write(ring, i, rows),), "ring")) == ("ring",)


def test_what_is_read_decides_what_is_written() -> None:
    graph = graph_of(lambda ring, i, rows: (write(ring, i, aten.add.Tensor(read(ring, i), rows)),), "ring")
    assert writable_in_place(graph) == ("ring",)


def test_a_reader_beside_the_write() -> None:
    """Attention over a ring: its result goes elsewhere, and nothing makes the write wait for it."""
    graph = graph_of(
        lambda ring, i, rows: (write(ring, i, rows), write(rows, i, aten.cos.default(read(ring, i)))),
        *("ring", "rows"),
    )
    assert writable_in_place(graph) == ()


def test_a_reader_that_an_earlier_write_does_not_wait_for() -> None:
    """Only the last write goes to the past's memory."""
    graph = graph_of(
        lambda ring, i, rows: (write(write(ring, i, rows), i, aten.cos.default(read(ring, i))),), "ring"
    )
    assert writable_in_place(graph) == ("ring",)


def test_a_reader_of_the_new_value() -> None:
    def function(ring: Tensor, index: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        after = write(ring, index, rows)
        return after, write(rows, index, read(after, index))

    # Of `rows`, what is written is read from it: the ring's new rows.
    assert writable_in_place(graph_of(function, "ring", "rows")) == ("ring", "rows")


def test_something_that_may_be_a_view() -> None:
    """Its memory may be the past's; who reads it later is not looked for."""
    graph = graph_of(
        lambda ring, i, rows: (write(ring, i, read(aten.view.default(ring, [2, 6]), i)[:, :3]),), "ring"
    )
    assert writable_in_place(graph) == ()


Array = np.ndarray[Any, Any]


def bound(session: Any, state: Mapping[str, Array], shared: set[str]) -> dict[str, Array]:
    """Runs a graph on a copy of `state`, the presents of `shared` in their pasts' memory; what it wrote."""
    binding, presents = session.io_binding(), {}
    pasts = {one.name: state[one.name.removeprefix("past.")].copy() for one in session.get_inputs()}
    for name, array in pasts.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for output in session.get_outputs():
        name = output.name.removeprefix("present.")
        array = pasts[past(name)]
        kept = presents[name] = array if name in shared else np.full_like(array, POISON)
        binding.bind_output(output.name, "cpu", 0, kept.dtype, kept.shape, kept.ctypes.data)
    session.run_with_iobinding(binding)
    for input_name, array in pasts.items():
        name = input_name.removeprefix("past.")
        assert name in shared or np.array_equal(array, state[name]), f"{name} was not to be written"
    return presents


POISON = -77
"""What a present that nobody writes whole would show."""

LEVELS = (
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
)
ORDERS = (onnxruntime.ExecutionOrder.DEFAULT, onnxruntime.ExecutionOrder.PRIORITY_BASED)


def options_of(level: Any, order: Any) -> Any:
    options = single_thread()
    options.graph_optimization_level, options.execution_order = level, order
    return options


@pytest.fixture(scope="module")
def state(exported: Exported) -> dict[str, Array]:
    """Two requests in the middle of their rounds, and a prompt chunk to come."""
    session = exported.eager()
    session.prefill(0, EagerRequest([3, 1, 4] * 8, 30, temperature=0.7))
    session.round()
    session.prefill(1, EagerRequest([2, 7], 30))
    session.round()
    session.input("prompt_tokens").copy_(torch.arange(exported.shape.prefill_chunk))
    session.input("prompt_count")[0] = 9
    return {name: buffer.numpy() for name, buffer in session.state.named_buffers()}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[0])
def test_sharing_memory_changes_nothing(exported: Exported, state: dict[str, Array], key: GraphKey) -> None:
    """Bit for bit, in every order of execution and with every rewriting ONNX Runtime has."""
    for level, order in itertools.product(LEVELS, ORDERS):
        session = open_file(exported.file(key), options_of(level, order))
        shared = set(session.get_modelmeta().custom_metadata_map[IN_PLACE].split(","))
        assert shared >= {"control"}
        apart, together = bound(session, state, set()), bound(session, state, shared)
        assert apart.keys() == together.keys() >= shared
        for name, value in apart.items():
            assert np.array_equal(value, together[name]), (name, level, order)
            assert not np.any(value == POISON), name


def test_the_rings_take_turns(exported: Exported) -> None:
    """Attention reads what was in them; its result does not decide the row that joins."""
    metadata = exported.runtime(("round", 2)).get_modelmeta().custom_metadata_map
    turning = {one.name for one in exported.runtime(("round", 2)).get_outputs()} - {
        present(name) for name in metadata[IN_PLACE].split(",")
    }
    assert turning == {present(name) for name in ("window_0", "ring_0", "indexer_ring_0")}


def test_sharing_without_leave_can_go_wrong() -> None:
    """A reader after the write in the file, which the data flow allows, sees the new rows."""

    def function(ring: Tensor, index: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        after = write(ring, index, rows)
        return after, write(rows, index, aten.cos.default(read(ring, index)))

    graph = graph_of(function, "ring", "rows")
    assert "ring" not in writable_in_place(graph)
    options = options_of(LEVELS[0], onnxruntime.ExecutionOrder.PRIORITY_BASED)
    session = onnxruntime.InferenceSession(model_of(graph).SerializeToString(), options)
    state = {"ring": RING.numpy(), "rows": ROWS.numpy(), "index": INDEX.numpy()}
    assert np.allclose(bound(session, state, set())["rows"], np.cos(0.0))
    assert np.allclose(bound(session, state, {"ring"})["rows"], np.cos(1.0))
