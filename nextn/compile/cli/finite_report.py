"""`--check-finite`: reads a whole checkpoint and names every tensor with NaN or Inf in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nextn.compile.build.progress import Meter, Progress
from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.content_checks import NotFinite, find_not_finite


@dataclass(frozen=True)
class FiniteReport:
    """The tensors at fault among `tensors` that were read."""

    folder: Path
    tensors: int
    not_finite: tuple[NotFinite, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {"tensors": self.tensors, "not_finite": [asdict(fault) for fault in self.not_finite]}

    def print(self) -> None:
        """A line for each tensor at fault, or one that says there is none."""
        for fault in self.not_finite:
            print(f"{fault.file}: {fault.tensor}: {fault.nan} NaN, {fault.inf} Inf")
        if not self.not_finite:
            print(f"{self.folder}: all values of {self.tensors} tensors are finite")

    def require_finite(self) -> None:
        """Raises CheckpointError, naming the first, if any tensor is at fault."""
        if self.not_finite:
            first = self.not_finite[0]
            raise CheckpointError(
                "weights that are not finite",
                file=first.file,
                key=first.tensor,
                expected="numbers in every tensor",
                found=f"NaN or Inf in {len(self.not_finite)} of {self.tensors}",
            )


def check_finite(checkpoint: Checkpoint, progress: Progress) -> FiniteReport:
    """Reads and dequantises everything. Raises CheckpointError for a file that cannot be read."""
    with progress.waiting("reading weights") as tell:
        faults = tuple(find_not_finite(checkpoint, Meter(tell)))
    return FiniteReport(checkpoint.folder, len(checkpoint.tensors), faults)
