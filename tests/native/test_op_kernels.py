"""The kernels of libnextn_ops equal the plain aten forms, called through the C interface graphs use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nextn.compile.targets.aoti.kernels import c_shims
from nextn.graphs.ops.hyper_connection import sinkhorn
from nextn.graphs.ops.operator import OPAQUE, OPERATORS
from nextn.graphs.ops.sample_token import sample_token
from nextn.graphs.ops.topk_entries import topk_entries
from nextn.runtime.contract.blocks import TEMPERATURE_ONE
from tests.oracles import token_sample

from .conftest import Build

Kernels = Callable[..., Tensor]


def _pointer(capsule: object) -> ctypes.c_void_p:
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p(read(capsule, None))


@pytest.fixture(scope="module")
def call(plain_build: Build) -> Kernels:
    """`call(name, *arguments)`: tensors, ints and floats in, one tensor out; AssertionError if it fails."""
    libtorch = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
    ctypes.CDLL(str(libtorch), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(plain_build.folder / "libnextn_ops.so"))
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    def convert(argument: Tensor | int | float) -> object:
        if isinstance(argument, Tensor):
            return _pointer(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(argument))
        return ctypes.c_double(argument) if isinstance(argument, float) else ctypes.c_int64(argument)

    def run(name: str, *arguments: Tensor | int | float) -> Tensor:
        result = ctypes.c_void_p()
        status = library[f"aoti_torch_cpu_nextn_{name}"](*map(convert, arguments), ctypes.byref(result))
        assert status == 0, f"{name} refused its arguments"
        tensor: Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(
            new_capsule(result.value, None, None)
        )
        return tensor

    return run


def test_every_opaque_operator_has_a_kernel() -> None:
    assert c_shims().keys() == OPAQUE == {sinkhorn, sample_token, topk_entries}
    assert OPAQUE < OPERATORS.keys()


@pytest.mark.parametrize("streams", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("iterations", [1, 20])
def test_sinkhorn_equals_plain(call: Kernels, streams: int, iterations: int) -> None:
    score = 4 * torch.randn(37, streams, streams, generator=torch.Generator().manual_seed(streams))
    kernel = call("sinkhorn", score, iterations, 1e-6)
    # Measured 4e-7: 39 divisions, rounded alike but summed in another order.
    torch.testing.assert_close(kernel, sinkhorn(score, iterations, 1e-6), rtol=0, atol=3e-6)


@pytest.mark.parametrize(("width", "k"), [(1, 1), (7, 7), (8, 2), (513, 24), (2048, 512)])
def test_topk_entries_choose_the_same_set(call: Kernels, width: int, k: int) -> None:
    generator = torch.Generator().manual_seed(width)
    score = torch.randint(-3, 4, (5, 6, width), generator=generator) / 2.0  # many ties
    score[0, 0] = -torch.inf
    score[0, 1, ::2] = -0.0
    score[0, 2, ::3] = torch.nan
    for rows in (score, score[0].contiguous()):
        kernel = call("topk_entries", rows, k).sort(-1).values
        assert torch.equal(kernel, topk_entries(rows, k).sort(-1).values)


def test_topk_entries_follow_a_stable_sort(call: Kernels) -> None:
    score = [0.5, 2.0, 0.5, -1.0, 2.0, 0.5]
    order = sorted(range(6), key=lambda index: -score[index])
    for k in range(1, 7):
        assert sorted(call("topk_entries", torch.tensor([score]), k)[0].tolist()) == sorted(order[:k])


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
def test_sample_token_equals_plain_and_oracle(call: Kernels, temperature: float) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = 3 * torch.randn(4, 3, 300, generator=generator)
    seed = torch.tensor([0, 7, 2**31 + 5, 2**62 + 11])
    position = torch.tensor([[0, 1, 2], [5, 6, 7], [4095, 4096, 4097], [70000, 70001, 70002]])
    fixed = torch.full((4, 2), round(temperature * TEMPERATURE_ONE))[:, 1]  # strided, as a block's column is
    kernel = call("sample_token", logits, seed, position, fixed)
    assert torch.equal(kernel, sample_token(logits, seed, position, fixed))
    for b in range(4):
        for v in range(3):
            expected, margin = token_sample.draw_with_margin(
                logits[b, v], float(fixed[b]) / TEMPERATURE_ONE, int(seed[b]), int(position[b, v])
            )
            assert margin > 1e-4, "choose another seed: this draw is a near tie"
            assert int(kernel[b, v]) == expected


def test_greedy_ties_take_the_lowest_token(call: Kernels) -> None:
    logits = torch.zeros(1, 1, 9)
    logits[0, 0, [3, 6]] = 1.0
    zero = torch.zeros(1, dtype=torch.int64)
    assert int(call("sample_token", logits, zero, zero[:, None], zero)) == 3


def test_kernels_refuse_what_they_were_not_compiled_for(call: Kernels) -> None:
    with pytest.raises(AssertionError, match="refused"):
        call("topk_entries", torch.zeros(2, 4, dtype=torch.float64), 2)
    with pytest.raises(AssertionError, match="refused"):
        call("topk_entries", torch.zeros(4, 2).T, 2)
    with pytest.raises(AssertionError, match="refused"):
        call("sinkhorn", torch.zeros(1, 9, 9), 20, 1e-6)
