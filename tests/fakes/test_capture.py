"""Captured graphs: what goes into one, what replay costs, and what must not happen inside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import pytest
import torch

from tests.fakes.acl import DEVICE_TO_DEVICE, Acl, AclError
from tests.fakes.cann.log import FakeCann, Record, kernels

CAPTURE_MODE_NOT_SUPPORT = 107030


@pytest.fixture
def block() -> torch.nn.Module:
    """Three kernels: Addmm, Relu, Addmm."""
    layers = (torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    return torch.nn.Sequential(*layers).requires_grad_(False).npu()


@pytest.fixture
def rows(cann: FakeCann) -> torch.Tensor:
    made = torch.zeros(4, 8).npu()
    cann.clear()
    return made


def capture(work: Callable[[], object], pool: object = None, **options: object) -> torch.npu.NPUGraph:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool, **options):
        work()
    return graph


def illegal(records: list[Record]) -> list[Record]:
    return [record for record in records if record.is_illegal_in_capture]


def test_a_capture_has_the_kernels_of_the_module_and_no_wait(
    cann: FakeCann, block: torch.nn.Module, rows: torch.Tensor
) -> None:
    torch.npu.synchronize()
    cann.clear()
    capture(lambda: block(rows))
    records = cann.take()
    captured = [record for record in records if record.captured]
    assert kernels(captured) == ["aclnnAddmm", "aclnnRelu", "aclnnAddmm"]
    assert [record.tasks for record in records if record.kind == "capture_end"] == [3]
    assert not illegal(records)


def test_without_a_capture_kernels_are_launched_at_once(
    cann: FakeCann, block: torch.nn.Module, rows: torch.Tensor
) -> None:
    cann.clear()
    block(rows)
    records = cann.take()
    assert kernels(records) == ["aclnnAddmm", "aclnnRelu", "aclnnAddmm"]
    assert not any(record.captured for record in records)


def test_a_replay_is_one_record(cann: FakeCann, block: torch.nn.Module, rows: torch.Tensor) -> None:
    graph = capture(lambda: block(rows))
    cann.clear()
    graph.replay()
    [record] = cann.take()
    assert (record.kind, record.tasks, record.blocking) == ("replay", 3, False)


def test_an_empty_capture_replays_nothing(cann: FakeCann, rows: torch.Tensor) -> None:
    graph = capture(lambda: rows.view(-1))
    cann.clear()
    graph.replay()
    assert sum(record.tasks for record in cann.take()) == 0


def test_a_host_read_inside_a_capture_fails_in_strict_mode(cann: FakeCann, rows: torch.Tensor) -> None:
    with cann.strict(), pytest.raises(RuntimeError, match=str(CAPTURE_MODE_NOT_SUPPORT)):
        capture(lambda: rows.relu().cpu())
    found = illegal(cann.take())
    assert {"copy"} <= {record.kind for record in found}
    assert {record.error for record in found} == {CAPTURE_MODE_NOT_SUPPORT}


def test_a_copy_that_was_refused_moved_nothing(cann: FakeCann) -> None:
    acl = Acl(cann.library)
    place = acl.malloc(4)
    acl.copy_to_device(place, b"kept")
    for strict, expected in ((True, b"kept"), (False, b"lost")):
        with cann.strict(strict), suppress(AclError):
            capture(lambda: acl.copy_to_device(place, b"lost"))
        assert acl.copy_to_host(place, 4) == expected
    acl.free(place)


def test_a_host_read_inside_a_capture_is_logged_otherwise(cann: FakeCann, rows: torch.Tensor) -> None:
    capture(lambda: rows.relu().cpu())
    found = illegal(cann.take())
    assert ("copy", "D2H", rows.nbytes) in [(record.kind, record.name, record.nbytes) for record in found]
    assert {record.error for record in found} == {0}


def test_a_host_read_outside_a_capture_is_no_fault(cann: FakeCann, rows: torch.Tensor) -> None:
    with cann.strict():
        capture(lambda: rows.relu())
        rows.cpu()
    records = cann.take()
    assert not illegal(records)
    assert [record.name for record in records if record.kind == "copy"] == ["D2H"]


def test_an_upload_inside_a_capture_is_illegal(cann: FakeCann, rows: torch.Tensor) -> None:
    """Not blocking, so strict mode lets it pass; but every replay uploads what the host has by then."""
    pinned = torch.zeros(4, 8).pin_memory()
    with cann.strict():
        graph = capture(lambda: rows.copy_(pinned, non_blocking=True))
    [record] = illegal(cann.take())
    assert (record.name, record.detail, record.blocking) == ("H2D", "async", False)
    pinned.fill_(7)
    assert (rows.cpu() == 0).all()
    graph.replay()
    assert (rows.cpu() == 7).all()


def test_a_replay_into_freed_memory_fails(cann: FakeCann) -> None:
    acl = Acl(cann.library)
    source, target = acl.malloc(64), acl.malloc(64)

    def copy() -> None:
        stream = torch.npu.current_stream().npu_stream
        acl.call("aclrtMemcpyAsync", target, 64, source, 64, DEVICE_TO_DEVICE, stream)

    graph = capture(copy)
    graph.replay()
    acl.free(target)
    cann.clear()
    with pytest.raises(RuntimeError, match="107000"):
        graph.replay()
    assert [(record.kind, record.error) for record in cann.take()] == [("replay", 107000)]
    acl.free(source)


def test_an_allocation_inside_a_capture_is_seen(cann: FakeCann, rows: torch.Tensor) -> None:
    torch.npu.empty_cache()
    capture(lambda: torch.empty(1 << 25, dtype=torch.uint8, device="npu"))
    inside = [record for record in cann.take() if record.kind == "allocate" and record.captured]
    assert sum(record.nbytes for record in inside) >= 1 << 25


def test_an_allocation_before_a_capture_is_not_in_it(cann: FakeCann, rows: torch.Tensor) -> None:
    torch.npu.empty_cache()
    cann.clear()
    torch.empty(1 << 25, dtype=torch.uint8, device="npu")
    capture(lambda: rows.view(-1))
    allocations = [record for record in cann.take() if record.kind == "allocate"]
    assert allocations and not any(record.captured for record in allocations)


def test_graphs_over_one_pool(cann: FakeCann, block: torch.nn.Module, rows: torch.Tensor) -> None:
    pool = torch.npu.graph_pool_handle()
    first = capture(lambda: block(rows), pool)
    second = capture(lambda: block(block(rows)), pool)
    cann.clear()
    first.replay()
    second.replay()
    first.replay()
    assert [(record.kind, record.tasks) for record in cann.take()] == [
        ("replay", 3),
        ("replay", 6),
        ("replay", 3),
    ]


def test_a_side_stream_joins_a_capture_through_an_event(cann: FakeCann, rows: torch.Tensor) -> None:
    side = torch.npu.Stream()

    def work() -> None:
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            rows.relu()
        main.wait_stream(side)

    capture(work)
    assert [record.captured for record in cann.take() if record.kind == "launch"] == [True]
    with torch.npu.stream(side):
        rows.relu()
    assert [record.captured for record in cann.take() if record.kind == "launch"] == [False]


def test_a_side_stream_without_an_event_stays_outside(cann: FakeCann, rows: torch.Tensor) -> None:
    side = torch.npu.Stream()

    def work() -> None:
        with torch.npu.stream(side):
            rows.relu()

    capture(work)
    assert [record.captured for record in cann.take() if record.kind == "launch"] == [False]


def test_an_operator_with_host_lengths_is_captured_as_a_group_and_updated(cann: FakeCann) -> None:
    query = torch.zeros(2, 4, 1, 64, dtype=torch.bfloat16).npu()
    cache = torch.zeros(2, 1, 16, 64, dtype=torch.bfloat16).npu()

    def attend() -> None:
        options = {"num_heads": 4, "num_key_value_heads": 1, "input_layout": "BNSD"}
        attention = torch.ops.npu.npu_fused_infer_attention_score
        attention(query, cache, cache, actual_seq_lengths_kv=[3, 4], **options)

    cann.clear()
    graph = capture(attend, auto_dispatch_capture=True)
    captured = [(record.kind, record.tasks) for record in cann.take() if record.captured]
    steps = [step for step in captured if step[0] != "allocate"]
    assert steps == [
        ("capture_begin", 0),
        ("task_group", 0),
        ("launch", 0),
        ("task_group", 0),
        ("capture_end", 1),
    ]
    graph.update(cpu_update_input=[{"actual_seq_lengths_kv": [5, 6]}])
    graph.replay()
    kinds = [record.kind for record in cann.take()]
    assert kinds == ["task_update", "launch", "task_update", "replay"]


def test_an_operator_without_host_lengths_has_nothing_to_update(cann: FakeCann, rows: torch.Tensor) -> None:
    graph = capture(rows.relu, auto_dispatch_capture=True)
    assert not [record for record in cann.take() if record.kind == "task_group"]
    with pytest.raises(RuntimeError, match="0 operators|need to be updated"):
        graph.update(cpu_update_input=[{}, {}])


@pytest.mark.parametrize(("mode", "disturbed"), [("global", True), ("thread_local", False)])
def test_only_a_global_capture_forbids_other_threads_to_wait(
    cann: FakeCann, rows: torch.Tensor, mode: str, disturbed: bool
) -> None:
    def wait_elsewhere() -> None:
        thread = Thread(target=torch.npu.synchronize)
        thread.start()
        thread.join()

    cann.clear()
    capture(wait_elsewhere, capture_error_mode=mode)
    records = cann.take()
    kinds = [record.kind for record in records]
    inside = records[kinds.index("capture_begin") + 1 : kinds.index("capture_end")]
    assert [record.captured for record in inside if record.kind == "sync"] == [disturbed]
