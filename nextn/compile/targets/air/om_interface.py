"""What a graph in GE IR takes and returns, and whether an .om file takes and returns the same.

A graph engine keeps nothing that leads to no output: the rows of one small block are returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from pathlib import Path

from nextn.runtime.contract.blocks import Control, Result
from nextn.runtime.contract.errors import ArtifactError
from nextn.runtime.contract.manifest import GraphRecord, ReturnedBlock

_BLOCKS: dict[ReturnedBlock, type[Control] | type[Result]] = {"result": Result, "control": Control}

_WORD = 8

_LIBRARY = "libascendcl.so"
_REPEAT_INITIALIZE = 100002


def input_name(tensor: str) -> str:
    """Of a tensor by its name in the manifest; GE's names have no dots."""
    return tensor.replace(".", "_")


def is_another_input(found: str, expected: str, known: Collection[str]) -> bool:
    """Whether an input that should be `expected` is certainly another one.

    It is if it has the very name of another tensor, one of `known`. Compilers add to names, so that a name of
    no tensor says nothing, nor does one that contains the expected name.
    """
    return found in known and expected not in found


def returned_block(written: Collection[str]) -> ReturnedBlock:
    """The block whose rows a graph returns that writes these buffers: the results, if it leaves any."""
    return next(name for name in _BLOCKS if name in written)


def returned_bytes(batch: int, block: ReturnedBlock) -> int:
    """Size of the rows of `batch` slots."""
    return batch * _BLOCKS[block].WIDTH * _WORD


def check_interfaces(files: Sequence[tuple[Path, GraphRecord]]) -> str | None:
    """Why nothing was compared, or None if everything was, and agrees.

    Compared are numbers and sizes of inputs and outputs, and the names of inputs where they are those of
    tensors; graphs that agree in all of it, as `decode` and `verify` of one batch size do, cannot be told
    apart. A session compares again before it runs anything, so where CANN does not answer this is no fault.
    Raises ArtifactError with the first input or output that differs, and for a file that is unlike the others
    none that ACL reads.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
        reader = _Reader(library)
    except (OSError, AttributeError) as error:
        return f"{_LIBRARY} does not load here: {error}"
    known = {input_name(tensor.name) for _, graph in files for tensor in graph.tensors}
    unread = []
    for path, graph in files:
        code = reader.open(path)
        if code == 0:
            _compare_inputs(path, graph, reader.sizes("Input"), reader.input_names(), known)
            _compare_outputs(path, graph, reader.sizes("Output"))
        else:
            unread.append((path, f"aclmdlGetDescFromFile gave error {code}"))
    if not unread:
        return None
    path, reason = unread[0]
    if len(unread) < len(files):
        raise ArtifactError("ACL reads other files, and not this one", file=path, found=reason)
    return f"{reason} for {path.name}"


def _compare_inputs(
    path: Path, graph: GraphRecord, sizes: list[int], names: list[str], known: Collection[str]
) -> None:
    if len(sizes) != len(graph.tensors):
        raise _differs(path, "inputs", len(graph.tensors), len(sizes))
    for index, (tensor, size, name) in enumerate(zip(graph.tensors, sizes, names, strict=True)):
        if size != tensor.nbytes:
            raise _differs(path, f"input {index} {tensor.name}", f"{tensor.nbytes} bytes", size)
        if is_another_input(name, input_name(tensor.name), known):
            raise _differs(path, f"input {index}", input_name(tensor.name), name)


def _compare_outputs(path: Path, graph: GraphRecord, sizes: list[int]) -> None:
    assert graph.returns is not None, "the manifest was checked"
    expected = [returned_bytes(graph.batch, graph.returns)]
    if sizes != expected:
        raise _differs(path, f"bytes of outputs, the rows of {graph.returns}", expected, sizes)


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
        name = library.aclmdlGetInputNameByIndex
        name.argtypes, name.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_char_p
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

    def input_names(self) -> list[str]:
        """Empty where ACL gives none."""
        count, _ = self._queries("Input")
        names = [
            self._library.aclmdlGetInputNameByIndex(self._description, index)
            for index in range(count(self._description))
        ]
        return [(name or b"").decode(errors="replace") for name in names]

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
