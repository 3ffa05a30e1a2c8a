"""A host of offline models in Python: the few ACL calls that torch_npu does not make."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOST_TO_DEVICE = 1
DEVICE_TO_HOST = 2
DEVICE_TO_DEVICE = 3

SIGNATURES = {
    "aclrtMalloc": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int],
    "aclrtFree": [ctypes.c_void_p],
    "aclrtMemcpy": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int],
    "aclrtMemcpyAsync": [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_int, ctypes.c_void_p),
    ],
    "aclrtCreateStream": [ctypes.c_void_p],
    "aclrtDestroyStream": [ctypes.c_void_p],
    "aclmdlQuerySize": [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p],
    "aclmdlLoadFromFile": [ctypes.c_char_p, ctypes.c_void_p],
    "aclmdlLoadFromFileWithMem": [
        *(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_void_p, ctypes.c_size_t),
    ],
    "aclmdlUnload": [ctypes.c_uint32],
    "aclmdlGetDesc": [ctypes.c_void_p, ctypes.c_uint32],
    "aclmdlDestroyDesc": [ctypes.c_void_p],
    "aclmdlAddDatasetBuffer": [ctypes.c_void_p, ctypes.c_void_p],
    "aclmdlDestroyDataset": [ctypes.c_void_p],
    "aclDestroyDataBuffer": [ctypes.c_void_p],
    "aclmdlExecute": [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p],
    "aclmdlExecuteAsync": [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p],
}
"""Functions that return an error code."""


class AclError(Exception):
    """An ACL function returned something else than 0."""


@dataclass
class Dataset:
    handle: int
    buffers: list[int] = field(default_factory=list)


class Acl:
    """Every method raises AclError where ACL returns an error code."""

    def __init__(self, library: ctypes.CDLL) -> None:
        # A second handle on the same library: argument types are kept per handle.
        self._library = ctypes.CDLL(library._name)
        for name, types in SIGNATURES.items():
            self._function(name).argtypes = types
        for name in ("aclmdlCreateDesc", "aclmdlCreateDataset", "aclCreateDataBuffer"):
            self._function(name).restype = ctypes.c_void_p
        for side in ("Input", "Output"):
            self._function(f"aclmdlGetNum{side}s").restype = ctypes.c_size_t
            self._function(f"aclmdlGet{side}SizeByIndex").restype = ctypes.c_size_t

    def _function(self, name: str) -> Any:
        # Not by subscript, which would give a new object without the types every time.
        return getattr(self._library, name)

    def call(self, name: str, *arguments: object) -> None:
        code = self._function(name)(*arguments)
        if code:
            raise AclError(f"{name} -> {code}")

    def malloc(self, nbytes: int) -> int:
        place = ctypes.c_void_p()
        self.call("aclrtMalloc", ctypes.byref(place), nbytes, 0)
        return int(place.value or 0)

    def free(self, place: int) -> None:
        self.call("aclrtFree", place)

    def copy_to_device(self, place: int, data: bytes) -> None:
        self.call("aclrtMemcpy", place, len(data), data, len(data), HOST_TO_DEVICE)

    def copy_to_host(self, place: int, nbytes: int) -> bytes:
        data = ctypes.create_string_buffer(nbytes)
        self.call("aclrtMemcpy", data, nbytes, place, nbytes, DEVICE_TO_HOST)
        return data.raw

    def create_stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("aclrtCreateStream", ctypes.byref(stream))
        return int(stream.value or 0)

    def query_size(self, path: Path) -> tuple[int, int]:
        """Bytes of work memory and of weights."""
        work, weights = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("aclmdlQuerySize", bytes(path), ctypes.byref(work), ctypes.byref(weights))
        return work.value, weights.value

    def load(self, path: Path) -> int:
        model = ctypes.c_uint32()
        self.call("aclmdlLoadFromFile", bytes(path), ctypes.byref(model))
        return model.value

    def load_into(self, path: Path, work: tuple[int, int], weights: tuple[int, int]) -> int:
        """With memory of the caller's: (place, bytes) each."""
        model = ctypes.c_uint32()
        self.call("aclmdlLoadFromFileWithMem", bytes(path), ctypes.byref(model), *work, *weights)
        return model.value

    def sizes(self, model: int) -> tuple[list[int], list[int]]:
        """Bytes of every input and of every output."""
        description = ctypes.c_void_p(self._library.aclmdlCreateDesc())
        self.call("aclmdlGetDesc", description, model)
        found = tuple(self._side_sizes(description, side) for side in ("Input", "Output"))
        self.call("aclmdlDestroyDesc", description)
        return found

    def _side_sizes(self, description: ctypes.c_void_p, side: str) -> list[int]:
        count = self._function(f"aclmdlGetNum{side}s")(description)
        size = self._function(f"aclmdlGet{side}SizeByIndex")
        return [size(description, ctypes.c_size_t(index)) for index in range(count)]

    def make_dataset(self, memory: Sequence[tuple[int, int]]) -> Dataset:
        """Of (place, bytes) each."""
        dataset = Dataset(self._library.aclmdlCreateDataset())
        for place, nbytes in memory:
            created = self._library.aclCreateDataBuffer(ctypes.c_void_p(place), ctypes.c_size_t(nbytes))
            self.call("aclmdlAddDatasetBuffer", dataset.handle, created)
            dataset.buffers.append(created)
        return dataset

    def destroy_dataset(self, dataset: Dataset) -> None:
        for buffer in dataset.buffers:
            self.call("aclDestroyDataBuffer", buffer)
        self.call("aclmdlDestroyDataset", dataset.handle)

    def execute(self, model: int, inputs: Dataset, outputs: Dataset, stream: int | None = None) -> None:
        """Asynchronously if there is a stream."""
        if stream is None:
            self.call("aclmdlExecute", model, inputs.handle, outputs.handle)
        else:
            self.call("aclmdlExecuteAsync", model, inputs.handle, outputs.handle, stream)
