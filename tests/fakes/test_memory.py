"""Device memory: bytes arrive, the books balance, and misuse is an error code."""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch

from tests.fakes.acl import Acl, AclError
from tests.fakes.cann.log import FakeCann
from tests.fakes.processes import run_python

PARAM_INVALID = 107000
CONTEXT_NULL = 107002
FEATURE_NOT_SUPPORT = 207000
MEMORY_ALLOCATION = 207001
MEMORY_FREE = 207002


def test_what_is_copied_to_the_device_comes_back(cann: FakeCann) -> None:
    sent = torch.arange(24.0).view(4, 6)
    assert torch.equal(sent.npu().cpu(), sent)
    copies = [record for record in cann.take() if record.kind == "copy"]
    assert [(copy.name, copy.nbytes, copy.captured) for copy in copies] == [
        ("H2D", 96, False),
        ("D2H", 96, False),
    ]


def test_no_kernel_runs_so_results_are_not_numbers(cann: FakeCann) -> None:
    torch.npu.empty_cache()
    ones = torch.ones(1 << 22, device="npu")
    assert (ones + ones).cpu().isnan().all()
    assert "aclnnAdd" in {record.name for record in cann.take()}


def test_freed_tensors_leave_nothing_behind(cann: FakeCann) -> None:
    gc.collect()
    torch.npu.empty_cache()
    before = cann.live()
    tensor = torch.empty(1 << 24, dtype=torch.uint8, device="npu")
    assert cann.live().nbytes >= before.nbytes + tensor.nbytes
    del tensor
    torch.npu.empty_cache()
    assert cann.live() == before


def test_allocations_and_frees_are_logged_with_their_bytes(cann: FakeCann) -> None:
    acl = Acl(cann.library)
    place = acl.malloc(1000)
    acl.free(place)
    entries = [(record.kind, record.name, record.nbytes) for record in cann.take()]
    assert entries == [("allocate", "device", 1000), ("free", "device", 1000)]


def test_a_second_free_and_a_foreign_pointer_are_told_apart(cann: FakeCann) -> None:
    acl = Acl(cann.library)
    place = acl.malloc(64)
    acl.free(place)
    with pytest.raises(AclError, match=str(MEMORY_FREE)):
        acl.free(place)
    mine = ctypes.create_string_buffer(64)
    with pytest.raises(AclError, match=str(PARAM_INVALID)):
        acl.free(ctypes.addressof(mine))
    assert [record.error for record in cann.take() if record.kind == "free"] == [
        0,
        MEMORY_FREE,
        PARAM_INVALID,
    ]


def test_a_device_can_be_full(cann: FakeCann, monkeypatch: pytest.MonkeyPatch) -> None:
    acl = Acl(cann.library)
    room = cann.live().nbytes + (1 << 20)
    monkeypatch.setenv("FAKE_CANN_DEVICE_BYTES", str(room))
    with pytest.raises(AclError, match=str(MEMORY_ALLOCATION)):
        acl.malloc(2 << 20)
    acl.free(acl.malloc(1 << 19))


def test_copies_must_stay_within_live_memory(cann: FakeCann) -> None:
    acl = Acl(cann.library)
    place = acl.malloc(64)
    acl.copy_to_device(place, bytes(64))
    assert acl.copy_to_host(place, 64) == bytes(64)
    with pytest.raises(AclError, match=str(PARAM_INVALID)):
        acl.copy_to_device(place + 32, bytes(33))
    acl.free(place)
    with pytest.raises(AclError, match=str(PARAM_INVALID)):
        acl.copy_to_host(place, 64)


def test_what_the_fake_cannot_do_it_refuses(cann: FakeCann) -> None:
    """A stub that answers "done" would leave the address unset."""
    assert cann.library.aclrtReserveMemAddress() == FEATURE_NOT_SUPPORT
    assert cann.library.aclrtMemcpyBatch() == FEATURE_NOT_SUPPORT
    assert cann.library.aclrtSetDeviceSatMode(0) == 0


BARE_THREAD = """
import ctypes
from tests.fakes.cann.build import libraries
acl = ctypes.CDLL(str(libraries() / "libascendcl.so"))
place, context = ctypes.c_void_p(), ctypes.c_void_p()
calls = [
    lambda: acl.aclrtGetCurrentContext(ctypes.byref(context)),
    lambda: acl.aclrtMalloc(ctypes.byref(place), ctypes.c_size_t(64), 0),
    lambda: acl.aclrtMallocHost(ctypes.byref(place), ctypes.c_size_t(64)),
    lambda: acl.aclrtCreateStream(ctypes.byref(place)),
    lambda: acl.aclrtSynchronizeDevice(),
]
before = [call() for call in calls]
print(before, acl.aclrtSetCurrentContext(None), acl.aclrtSetDevice(0), [call() for call in calls])
"""


def test_a_thread_may_have_no_context() -> None:
    """Then nothing that needs a device can be done, until one is chosen; a context cannot be taken away."""
    done = run_python(BARE_THREAD, FAKE_CANN_BARE_THREADS="1", on_the_fake=False)
    refused = 5 * [CONTEXT_NULL]
    assert done.stdout.splitlines()[-1] == f"{refused} {PARAM_INVALID} 0 {5 * [0]}", done.stderr
