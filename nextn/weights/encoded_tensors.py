"""`EncodedTensor`: an original tensor with its encoding, which its dtype, shape and scales determine.

Source: docs/design.md, "Published layouts".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.dequantise import FP8_BLOCK, MXFP4_GROUP, Encoding
from nextn.weights.packed import PackedWeight, SourcePart
from nextn.weights.quantisation_metadata import QuantisationMetadata
from nextn.weights.stored_tensors import StoredTensor

FLOAT_DTYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
INDEX_DTYPES: Mapping[str, torch.dtype] = {"I32": torch.int32, "I64": torch.int64}

POWER_SCALES = "F8_E8M0"

# The release and compressed-tensors say `.scale`, ModelSlim `.weight_scale`.
_SCALE_LEAVES = ("scale", "weight_scale")
_OFFSET_LEAF = "weight_offset"


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """The values of one original tensor: `data` as they are, or codes that `scales` turn into values."""

    encoding: Encoding
    shape: tuple[int, ...]
    """Of the values; mxfp4 data has half the columns."""
    data: StoredTensor
    scales: StoredTensor | None = None
    offsets: StoredTensor | None = None
    """Zeros: symmetric exports write them nevertheless."""

    @property
    def stored(self) -> tuple[StoredTensor, ...]:
        """Every tensor on disk that the values come from."""
        return tuple(item for item in (self.data, self.scales, self.offsets) if item is not None)


class TensorEncoder:
    """Finds data and scales of each tensor the architecture has, and remembers which were used.

    Args:
        tensors: by original name, scales included.
        metadata: of the export.
        origin: the file that an error about an absent tensor names.
    """

    def __init__(
        self, tensors: Mapping[str, StoredTensor], metadata: QuantisationMetadata, origin: Path
    ) -> None:
        self._tensors = tensors
        self._metadata = metadata
        self._origin = origin
        self._used: set[str] = set()

    def encode(self, weight: PackedWeight, part: SourcePart) -> EncodedTensor:
        """`part` as it is stored.

        Raises:
            CheckpointError: absent, or of a dtype or shape that is none of the known encodings of `part`.
        """
        data = self._take(part.name)
        if data is None:
            raise CheckpointError(
                "missing tensor", file=self._origin, key=part.name, expected=list(part.shape), found="nothing"
            )
        plain = INDEX_DTYPES if weight.role == "index" else FLOAT_DTYPES
        if data.dtype in plain:
            encoded = EncodedTensor("plain", part.shape, data)
        elif weight.role == "index" or data.dtype not in ("F8_E4M3", "I8") or len(part.shape) != 2:
            _refuse(data, "wrong tensor dtype", " or ".join(plain), data.dtype)
        else:
            encoded = self._quantised(part, data)
        stored_columns = part.shape[-1] // 2 if encoded.encoding == "mxfp4" else part.shape[-1]
        _check_shape(data, (*part.shape[:-1], stored_columns))
        self._metadata.check(data.name, encoded.encoding)
        return encoded

    def refuse_unused(self) -> None:
        """Raise for a tensor that was never asked for."""
        for name, stored in self._tensors.items():
            if name not in self._used:
                found = f"{stored.dtype} {list(stored.shape)}"
                _refuse(stored, "unexpected tensor", "only tensors config.json implies", found)

    def _take(self, name: str) -> StoredTensor | None:
        self._used.add(name)
        return self._tensors.get(name)

    def _quantised(self, part: SourcePart, data: StoredTensor) -> EncodedTensor:
        base = part.name.removesuffix("weight")
        found = [scale for leaf in _SCALE_LEAVES if (scale := self._take(base + leaf)) is not None]
        if len(found) != 1:
            wanted = f"one of {' and '.join(base + leaf for leaf in _SCALE_LEAVES)}"
            if not found:
                _refuse(data, "quantised tensor without its scale", wanted, "nothing")
            _refuse(data, "two scales for one weight", wanted, " and ".join(scale.name for scale in found))
        return self._with_scales(part, data, found[0], base)

    def _with_scales(
        self, part: SourcePart, data: StoredTensor, scales: StoredTensor, base: str
    ) -> EncodedTensor:
        rows, columns = part.shape
        if data.dtype == "F8_E4M3":
            _check_dtype(scales, (POWER_SCALES,))
            _check_shape(scales, (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)))
            return EncodedTensor("fp8_block", part.shape, data, scales)
        per_group, per_row = (rows, -(-columns // MXFP4_GROUP)), ((rows,), (rows, 1))
        # If only one layout has scales of this shape, then a dtype of another layout is the fault.
        if scales.shape == per_group and per_group not in per_row:
            _check_dtype(scales, (POWER_SCALES,))
        if scales.shape in per_row and scales.shape != per_group:
            _check_dtype(scales, tuple(FLOAT_DTYPES))
        if scales.dtype == POWER_SCALES:
            if columns % 2:
                _refuse(data, "fp4 needs an even number of columns", "an even number", columns)
            _check_shape(scales, per_group)
            return EncodedTensor("mxfp4", part.shape, data, scales)
        _check_dtype(scales, tuple(FLOAT_DTYPES))
        _check_shape(scales, (rows,) if len(scales.shape) == 1 else (rows, 1))
        offsets = self._take(base + _OFFSET_LEAF)
        if offsets is not None:
            _check_dtype(offsets, tuple(FLOAT_DTYPES))
            _check_shape(offsets, scales.shape)
        return EncodedTensor("int8_row", part.shape, data, scales, offsets)


def _check_dtype(stored: StoredTensor, expected: tuple[str, ...]) -> None:
    if stored.dtype not in expected:
        _refuse(stored, "wrong tensor dtype", " or ".join(expected), stored.dtype)


def _check_shape(stored: StoredTensor, expected: tuple[int, ...]) -> None:
    if stored.shape != expected:
        _refuse(stored, "wrong tensor shape", list(expected), list(stored.shape))


def _refuse(stored: StoredTensor, message: str, expected: object, found: object) -> NoReturn:
    raise CheckpointError(message, file=stored.file, key=stored.name, expected=expected, found=found)
