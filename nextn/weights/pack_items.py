"""The tensors of a packed file, each with its manifest description and the source of its bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Literal, Protocol

import torch
from torch import Tensor

from nextn.weights.aligned_file import PlannedTensor
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.dequantise import FP8_BLOCK, Encoding
from nextn.weights.packed import PackedWeight, Role, scales_name
from nextn.weights.tensor_reader import TensorReader, WeightReader

StorageLayout = Literal["plain", "fp8_block", "mxfp4", "int8_row"]

_CODE_DTYPES: Mapping[Encoding, torch.dtype] = MappingProxyType(
    {"fp8_block": torch.float8_e4m3fn, "mxfp4": torch.uint8, "int8_row": torch.int8}
)
_EXTRA_ROLES: Mapping[torch.dtype, Role] = MappingProxyType({torch.float32: "float32", torch.int64: "index"})


class Reader(Protocol):
    """Yields the data of one packed tensor once, then knows where it came from."""

    sources: list[tuple[str, str, str]]

    def pieces(self) -> Iterator[Tensor]: ...


@dataclass(frozen=True)
class PackItem:
    """One tensor of the file. `dtype` and `shape` are logical; `planned` is how it is stored."""

    planned: PlannedTensor
    role: Role | Literal["scales"]
    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: StorageLayout
    scales: str | None
    reader: Reader

    def manifest_entry(self, offset: int, sha256: str) -> dict[str, object]:
        """Valid once the reader has been read."""
        return {
            "name": self.planned.name,
            "role": self.role,
            "dtype": _dtype_name(self.dtype),
            "shape": list(self.shape),
            "storage": {
                "layout": self.layout,
                "dtype": _dtype_name(self.planned.dtype),
                "shape": list(self.planned.shape),
            },
            "scales": self.scales,
            "source": [list(source) for source in self.reader.sources],
            "offset": offset,
            "nbytes": self.planned.nbytes,
            "sha256": sha256,
        }


def pack_items(
    checkpoint: Checkpoint,
    packed: Sequence[PackedWeight],
    dtype: torch.dtype,
    extra: Mapping[str, Tensor],
    keep: Collection[Encoding],
) -> Iterator[PackItem]:
    """Every tensor of the packed file; see `pack_weights`."""
    for weight in packed:
        encoding = common_encoding(checkpoint, weight)
        if encoding == "plain" or encoding not in keep:
            stored = weight.stored_dtype(dtype)
            planned = PlannedTensor(weight.name, stored, weight.shape)
            reader = WeightReader(checkpoint, weight, dtype)
            yield PackItem(planned, weight.role, stored, weight.shape, "plain", None, reader)
        else:
            yield from _quantised_items(checkpoint, weight, dtype, encoding)
    for name, tensor in extra.items():
        planned = PlannedTensor(name, tensor.dtype, tuple(tensor.shape))
        role = _EXTRA_ROLES[tensor.dtype]
        yield PackItem(planned, role, tensor.dtype, planned.shape, "plain", None, _Constant(tensor))


def common_encoding(checkpoint: Checkpoint, weight: PackedWeight) -> Encoding:
    """How the weight can be stored without dequantising it: `plain` unless all its parts agree."""
    encodings = {checkpoint.tensors[part.name].encoding for part in weight.parts}
    if weight.role != "matrix" or len(encodings) != 1:
        return "plain"
    encoding = encodings.pop()
    # Parts follow each other by rows; a scale that two parts share would have no single value.
    cut = encoding == "fp8_block" and len(weight.parts) > 1
    if cut and any(part.shape[0] % FP8_BLOCK for part in weight.parts):
        return "plain"
    return encoding


def _quantised_items(
    checkpoint: Checkpoint, weight: PackedWeight, dtype: torch.dtype, encoding: Encoding
) -> Iterator[PackItem]:
    """The codes of a weight, and its scales as a tensor of their own."""
    name = scales_name(weight.name)
    scale_dtype = torch.float32 if encoding == "int8_row" else torch.float8_e8m0fnu
    stack = weight.shape[:-2]
    count = prod(stack)
    code_columns = scale_rows = scale_columns = 0
    for part in weight.parts:
        encoded = checkpoint.tensors[part.name]
        assert encoded.scales is not None
        code_columns = encoded.data.shape[1]
        scale_rows += encoded.scales.shape[0]
        scale_columns = prod(encoded.scales.shape[1:])
    codes = PlannedTensor(weight.name, _CODE_DTYPES[encoding], (*weight.shape[:-1], code_columns))
    scales = PlannedTensor(name, scale_dtype, (*stack, scale_rows // count, scale_columns))
    assert encoding != "plain"
    yield PackItem(
        codes, "matrix", dtype, weight.shape, encoding, name, _Quantised(checkpoint, weight, scales=False)
    )
    yield PackItem(
        scales,
        "scales",
        scale_dtype,
        scales.shape,
        "plain",
        None,
        _Quantised(checkpoint, weight, scales=True),
    )


class _Quantised:
    """The codes or the scales of each part of a weight, as they are on disk (int8 scales as fp32)."""

    def __init__(self, checkpoint: Checkpoint, weight: PackedWeight, scales: bool) -> None:
        self._checkpoint = checkpoint
        self._weight = weight
        self._scales = scales
        self.sources: list[tuple[str, str, str]] = []

    def pieces(self) -> Iterator[Tensor]:
        for part in self._weight.parts:
            reader = TensorReader(self._checkpoint.tensors[part.name], torch.float32)
            yield from reader.scales() if self._scales else reader.codes()
            self.sources += [self._checkpoint.source_record(part.name, *source) for source in reader.sources]


class _Constant:
    """A tensor that no checkpoint holds."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.sources: list[tuple[str, str, str]] = []

    def pieces(self) -> Iterator[Tensor]:
        yield self._tensor.contiguous()


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
