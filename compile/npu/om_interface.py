"""Compares what .om files take and give with the graphs they are to be, where CANN's runtime is at hand."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from nextn.compile.npu.returned_rows import returned_bytes
from nextn.runtime.contract.errors import ArtifactError
from nextn.runtime.contract.graph_spec import GraphSpec

_LIBRARY = "libascendcl.so"
_REPEAT_INITIALIZE = 100002


def check_interfaces(files: Sequence[tuple[Path, GraphSpec]]) -> str | None:
    """Why nothing was compared, or None if everything was, and agrees.

    A session compares again before it runs anything, so where CANN does not answer this is no fault. Raises
    ArtifactError with the first input or output that differs, and for a file that is unlike the others none
    that ACL reads.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
        reader = _Reader(library)
    except (OSError, AttributeError) as error:
        return f"{_LIBRARY} does not load here: {error}"
    unread = []
    for path, graph in files:
        code = reader.open(path)
        if code == 0:
            _compare(path, graph, reader.sizes("Input"), reader.sizes("Output"))
        else:
            unread.append((path, f"aclmdlGetDescFromFile gave error {code}"))
    if not unread:
        return None
    path, reason = unread[0]
    if len(unread) < len(files):
        raise ArtifactError("ACL reads other files, and not this one", file=path, found=reason)
    return f"{reason} for {path.name}"


def _compare(path: Path, graph: GraphSpec, inputs: list[int], outputs: list[int]) -> None:
    if len(inputs) != len(graph.tensors):
        raise _differs(path, "inputs", len(graph.tensors), len(inputs))
    for index, (tensor, found) in enumerate(zip(graph.tensors, inputs, strict=True)):
        if found != tensor.nbytes:
            raise _differs(path, f"input {index} {tensor.name}", f"{tensor.nbytes} bytes", found)
    sizes = returned_bytes(graph)
    if len(outputs) != 1 or outputs[0] not in sizes:
        raise _differs(path, "outputs", f"one of {sizes[0]} or {sizes[1]} bytes", outputs)


def _differs(path: Path, key: str, expected: object, found: object) -> ArtifactError:
    return ArtifactError(
        "the file was built from another graph", file=path, key=key, expected=expected, found=found
    )


class _Reader:
    """The description of one file at a time."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises AttributeError if a function is missing, OSError if ACL does not start."""
        self._description: int | None = None
        self._library = library
        create = library.aclmdlCreateDesc
        create.restype = ctypes.c_void_p
        library.aclmdlGetDescFromFile.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        for side in ("Input", "Output"):
            count, size = self._queries(side)
            count.argtypes, count.restype = [ctypes.c_void_p], ctypes.c_size_t
            size.argtypes, size.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_size_t
        library.aclmdlDestroyDesc.argtypes = [ctypes.c_void_p]
        code = library.aclInit(None)
        if code not in (0, _REPEAT_INITIALIZE):
            raise OSError(f"aclInit gave error {code}")
        self._create = create

    def open(self, path: Path) -> int:
        """ACL's code."""
        self.close()
        self._description = self._create()
        return int(self._library.aclmdlGetDescFromFile(self._description, bytes(path)))

    def sizes(self, side: str) -> list[int]:
        """Bytes of every `Input` or `Output`."""
        count, size = self._queries(side)
        return [int(size(self._description, index)) for index in range(count(self._description))]

    def close(self) -> None:
        if self._description is not None:
            self._library.aclmdlDestroyDesc(self._description)
            self._description = None

    def __del__(self) -> None:
        self.close()

    def _queries(self, side: str) -> tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer]:
        return (
            getattr(self._library, f"aclmdlGetNum{side}s"),
            getattr(self._library, f"aclmdlGet{side}SizeByIndex"),
        )
