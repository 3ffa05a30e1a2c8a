"""`GraphSpec`: the contract of one fixed-shape graph, read by compile, runtime, manifest and tests."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

TensorKind = Literal["weight", "state", "input"]

DTYPE_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e8m0fnu": 1,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
}

GRAPH_NAMES = ("prefill", "seed", "decode", "verify", "accept", "draft_extend", "draft_step", "round")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor a graph binds by name.

    `weight` is read-only and lives in the weights file, `state` persists between launches and is
    written by graphs, `input` is written by the host before a launch.
    """

    name: str
    kind: TensorKind
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class GraphSpec:
    """Name, bucket and every tensor of one graph. A graph returns nothing: its results are state."""

    name: str
    batch: int
    rows: int
    tensors: tuple[TensorSpec, ...]

    @property
    def key(self) -> str:
        """File stem and manifest key, `<name>.b<batch>`."""
        return f"{self.name}.b{self.batch}"


@dataclass(frozen=True)
class StateSpec:
    """One persistent buffer: `[(slots + 1) * rows_per_slot, row_width]`; the last slot is scratch."""

    name: str
    rows_per_slot: int
    row_width: int
    dtype: str

    def shape(self, slots: int) -> tuple[int, int]:
        return (slots + 1) * self.rows_per_slot, self.row_width

    def nbytes(self, slots: int) -> int:
        return prod(self.shape(slots)) * DTYPE_BYTES[self.dtype]
