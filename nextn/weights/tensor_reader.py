"""The values of one tensor, piece by piece, in memory that does not grow with the tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.dequantise import PIECE_BYTES, SCALE_NAN, dequantise, powers_of_two
from nextn.weights.encoded_tensors import FLOAT_DTYPES, INDEX_DTYPES, POWER_SCALES, EncodedTensor
from nextn.weights.stored_tensors import StoredTensor

# Nothing is looked up in plain tensors, so that larger reads only save calls.
_PLAIN_PIECE_BYTES = 4 * 1024 * 1024


class ScaleNotFinite(CheckpointError):
    """Scales with `nan` and `inf` values that are not numbers."""

    def __init__(self, stored: StoredTensor, expected: str, found: str, nan: int, inf: int) -> None:
        super().__init__(
            "scale is not a number", file=stored.file, key=stored.name, expected=expected, found=found
        )
        self.nan = nan
        self.inf = inf


class TensorReader:
    """Reads `tensor` once, front to back.

    Args:
        tensor: what to read.
        dtype: of the values; float32 or bfloat16, int64 for routing tables.
    """

    def __init__(self, tensor: EncodedTensor, dtype: torch.dtype) -> None:
        self._tensor = tensor
        self._dtype = dtype
        self.sources: list[tuple[StoredTensor, str]] = []
        """After the last piece: each tensor on disk that was read, with the SHA-256 of its bytes."""

    def pieces(self) -> Iterator[Tensor]:
        """Flat values in order. A piece is valid until the next one is asked for.

        Raises:
            CheckpointError: a file cannot be read or shrank, or a scale is not a number.
        """
        if self._tensor.encoding == "plain":
            yield from self._plain()
        else:
            yield from self._dequantised()

    def codes(self) -> Iterator[Tensor]:
        """The bytes of a quantised tensor, uint8, instead of its values."""
        stored, digest = self._tensor.data, hashlib.sha256()
        for data in stored.read(_PLAIN_PIECE_BYTES):
            digest.update(data)
            yield torch.frombuffer(data, dtype=torch.uint8)
        self.sources = [(stored, digest.hexdigest())]

    def scales(self) -> Iterator[Tensor]:
        """The scales of a quantised tensor: ue8m0 codes as uint8, or fp32."""
        values, self.sources = self._read_scales()
        yield values

    def _plain(self) -> Iterator[Tensor]:
        stored, digest = self._tensor.data, hashlib.sha256()
        dtype = FLOAT_DTYPES.get(stored.dtype) or INDEX_DTYPES[stored.dtype]
        for data in stored.read(_PLAIN_PIECE_BYTES):
            digest.update(data)
            yield torch.frombuffer(data, dtype=dtype).to(self._dtype)
        self.sources = [(stored, digest.hexdigest())]

    def _dequantised(self) -> Iterator[Tensor]:
        tensor, digest = self._tensor, hashlib.sha256()
        scales, scale_sources = self._read_scales()
        if scales.dtype == torch.uint8:
            scales = powers_of_two(scales)
        rows, columns = tensor.shape
        row_bytes = tensor.data.nbytes // rows
        piece_rows = max(1, PIECE_BYTES // row_bytes)
        values = torch.empty(min(rows, piece_rows), columns, dtype=self._dtype)
        row = 0
        for data in tensor.data.read(piece_rows * row_bytes):
            digest.update(data)
            codes = torch.frombuffer(data, dtype=torch.uint8).view(-1, row_bytes)  # [R, bytes]
            piece = values[: codes.shape[0]]
            dequantise(tensor.encoding, codes, scales, piece, row)
            row += codes.shape[0]
            yield piece.view(-1)
        self.sources = [(tensor.data, digest.hexdigest()), *scale_sources]

    def _read_scales(self) -> tuple[Tensor, list[tuple[StoredTensor, str]]]:
        """ue8m0 codes as uint8, or fp32 `[rows, 1]`; and what was read."""
        stored = self._tensor.scales
        assert stored is not None
        data = stored.read_all()
        sources = [(stored, hashlib.sha256(data).hexdigest())]
        if stored.dtype == POWER_SCALES:
            codes = torch.frombuffer(data, dtype=torch.uint8).view(stored.shape)
            _refuse_not_finite(powers_of_two(codes), stored, f"a code below {SCALE_NAN}")
            return codes, sources
        scales = torch.frombuffer(data, dtype=FLOAT_DTYPES[stored.dtype]).float().view(-1, 1)
        _refuse_not_finite(scales, stored, "a finite scale")
        if self._tensor.offsets is not None:
            zeros = self._tensor.offsets
            data = zeros.read_all()
            sources.append((zeros, hashlib.sha256(data).hexdigest()))
            offsets = torch.frombuffer(data, dtype=FLOAT_DTYPES[zeros.dtype])
            if (bad := offsets != 0).any():
                raise CheckpointError(
                    "asymmetric quantisation is not supported",
                    file=zeros.file,
                    key=zeros.name,
                    expected="zeros",
                    found=_first_of(bad),
                )
        return scales, sources


def _refuse_not_finite(scales: Tensor, stored: StoredTensor, expected: str) -> None:
    bad = ~scales.isfinite()
    if bad.any():
        raise ScaleNotFinite(
            stored, expected, _first_of(bad), int(scales.isnan().sum()), int(scales.isinf().sum())
        )


def _first_of(bad: Tensor) -> str:
    return f"element {int(bad.reshape(-1).int().argmax())}"
