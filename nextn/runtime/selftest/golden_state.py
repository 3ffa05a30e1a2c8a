"""Row sums of state against those of a golden run, buffer by buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BufferDifference:
    """How far the rows of one state buffer are from the recorded ones, over sums and sums of magnitudes.

    `largest` is the largest difference of a sum, `share_of_allowed` the largest share of what its row may
    differ by: the buffer is right up to 1. Neither is finite where a sum is not. `fault` says what the first
    row that is wrong holds.
    """

    buffer: str
    rows: int
    largest: float
    share_of_allowed: float
    first_bad_row: int | None
    bad_rows: int
    fault: str | None


def compare_rows(buffer: str, wanted: Floats, found: Floats, rtol: float, atol: float) -> BufferDifference:
    """Both `[rows, 2]`: sum and sum of magnitudes. `rtol` is relative to the recorded sum of magnitudes."""
    if wanted.shape != found.shape:
        shapes = f"{buffer}: expected {wanted.shape} sums, found {found.shape}"
        return BufferDifference(buffer, len(found), np.inf, np.inf, None, len(found), shapes)
    allowed = rtol * wanted[:, 1:] + atol
    # A sum that is not finite is as wrong as can be, also where both are.
    difference = _without_nan(np.abs(wanted - found))
    share = _without_nan(difference / allowed)
    wrong = np.flatnonzero(~(share <= 1).all(axis=1))
    fault = None
    if len(wrong):
        row = int(wrong[0])
        fault = f"{buffer} row {row}: sums expected {wanted[row].tolist()}, found {found[row].tolist()}"
        fault += f", and {len(wrong) - 1} more rows" if len(wrong) > 1 else ""
    return BufferDifference(
        buffer=buffer,
        rows=len(found),
        largest=float(difference.max(initial=0)),
        share_of_allowed=float(share.max(initial=0)),
        first_bad_row=int(wrong[0]) if len(wrong) else None,
        bad_rows=len(wrong),
        fault=fault,
    )


def _without_nan(values: Floats) -> Floats:
    return np.where(np.isnan(values), np.inf, values)
