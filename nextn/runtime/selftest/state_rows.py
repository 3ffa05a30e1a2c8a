"""Row sums of a state buffer, the checksum that golden runs store."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nextn.runtime.contract.graph_spec import DTYPE_BYTES, StateSpec


def row_sums(view: memoryview, specification: StateSpec) -> npt.NDArray[np.float64]:
    """`[rows_per_slot, 2]`: sum and sum of magnitudes of each row of slot 0, in float64."""
    rows, width = specification.rows_per_slot, specification.row_width
    size = rows * width * DTYPE_BYTES[specification.dtype]
    values = as_float64(view[:size].tobytes(), specification.dtype).reshape(rows, width)
    return np.stack([values.sum(axis=1), np.abs(values).sum(axis=1)], axis=1)


def as_float64(data: bytes, dtype: str) -> npt.NDArray[np.float64]:
    """Flat values of raw little-endian tensor bytes; numpy lacks bfloat16, the high half of a float32."""
    if dtype == "bfloat16":
        wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).astype(np.float64)
    flat: npt.NDArray[Any] = np.frombuffer(data, np.dtype(dtype))
    return flat.astype(np.float64)
