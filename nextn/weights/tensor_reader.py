"""The values of a checkpoint's tensors and of packed weights, piece by piece or all in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.dequantise import PIECE_BYTES, SCALE_NAN, dequantise, powers_of_two
from nextn.weights.encoded_tensors import FLOAT_DTYPES, INDEX_DTYPES, POWER_SCALES, EncodedTensor
from nextn.weights.packed import PackedWeight
from nextn.weights.stored_tensors import StoredTensor

COMPUTE_DTYPES = (torch.float32, torch.bfloat16)

# A plain tensor needs no lookup, so larger reads only save calls.
_PLAIN_PIECE_BYTES = 4 * 1024 * 1024


def load_weights(
    checkpoint: Checkpoint, packed: Sequence[PackedWeight], dtype: torch.dtype
) -> dict[str, Tensor]:
    """The packed weights in memory, bit-equal to those that `pack_weights` writes.

    Args:
        checkpoint: the source.
        packed: weights to assemble, from `packed_weights(checkpoint.config, ...)`.
        dtype: compute dtype of `matrix` weights, float32 or bfloat16.

    Raises:
        CheckpointError: see `WeightReader.pieces`.
    """
    weights: dict[str, Tensor] = {}
    for weight in packed:
        values = torch.empty(weight.shape, dtype=weight.stored_dtype(dtype))
        flat, done = values.view(-1), 0
        for piece in WeightReader(checkpoint, weight, dtype).pieces():
            flat[done : done + piece.numel()] = piece
            done += piece.numel()
        weights[weight.name] = values
    return weights


class WeightReader:
    """Reads one packed weight once: its parts in storage order, each piece by piece."""

    def __init__(self, checkpoint: Checkpoint, weight: PackedWeight, dtype: torch.dtype) -> None:
        if dtype not in COMPUTE_DTYPES:
            raise ValueError(f"compute dtype must be float32 or bfloat16, not {dtype}")
        self._checkpoint = checkpoint
        self._weight = weight
        self._dtype = weight.stored_dtype(dtype)
        self.sources: list[tuple[str, str, str]] = []
        """After the last piece: file, tensor and SHA-256 of its bytes of each tensor that was read."""

    def pieces(self) -> Iterator[Tensor]:
        """Flat values in storage order. A piece is valid until the next one is asked for.

        Raises:
            CheckpointError: a source cannot be read or holds an impossible value.
        """
        experts = self._checkpoint.config.n_routed_experts
        for part in self._weight.parts:
            encoded = self._checkpoint.tensors[part.name]
            reader = TensorReader(encoded, self._dtype)
            for piece in reader.pieces():
                if self._weight.role == "index":
                    _check_expert_range(piece, encoded.data, experts)
                yield piece
            self.sources += [self._checkpoint.source_record(part.name, *source) for source in reader.sources]


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The elements of a contiguous CPU tensor, row-major, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _check_expert_range(table: Tensor, source: StoredTensor, experts: int) -> None:
    low, high = int(table.min()), int(table.max())
    if low < 0 or high >= experts:
        raise CheckpointError(
            "expert index out of range",
            file=source.file,
            key=source.name,
            expected=f"values in [0, {experts - 1}]",
            found=low if low < 0 else high,
        )


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
        tensor: the source.
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
        """ue8m0 codes as uint8, or fp32 `[rows, 1]`; and each tensor read, with its SHA-256."""
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
