"""`Form`: a fused operator that may take the place of one of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FLOATS = "float32 or bfloat16"


@dataclass(frozen=True)
class Form:
    """`name` is what a manifest records for `operator`, the short name of one of our operators.

    `why_not` and `build` take the operator's arguments, fake tensors among them: the first says what the form
    needs and does not find in this call, None if nothing; the second makes the results. `custom_ops` are, by
    GE type, operators that a user has to name: those of packages beside torch_npu's own, and one that may
    choose otherwise than the plain form. `reads_blocks`: entries of the state as they lie, in blocks, which
    `ENTRY_ROWS_MULTIPLES` makes whole.
    """

    name: str
    operator: str
    why_not: Callable[..., str | None]
    build: Callable[..., Any]
    custom_ops: tuple[str, ...] = ()
    reads_blocks: bool = False


def first_fault(*checks: tuple[bool, str]) -> str | None:
    """The text of the first check that does not hold."""
    return next((text for holds, text in checks if not holds), None)
