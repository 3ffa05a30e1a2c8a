"""`--check-finite`: reads a whole checkpoint and names every tensor with NaN or Inf in it."""

from __future__ import annotations

import json
from dataclasses import asdict

from nextn.compile.progress import Meter, Progress
from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.finite import NotFinite, find_not_finite


def check_finite(checkpoint: Checkpoint, progress: Progress, as_json: bool) -> None:
    """Prints the tensors at fault, or that there are none.

    Raises CheckpointError, after printing, if there are any.
    """
    with progress.waiting("reading weights") as tell:
        faults = list(find_not_finite(checkpoint, Meter(tell)))
    count = len(checkpoint.tensors)
    if as_json:
        print(json.dumps({"tensors": count, "not_finite": [asdict(fault) for fault in faults]}))
    else:
        for fault in faults:
            print(_one_line(fault))
        if not faults:
            print(f"{checkpoint.folder}: all values of {count} tensors are finite")
    if faults:
        first = faults[0]
        raise CheckpointError(
            "weights that are not finite",
            file=first.file,
            key=first.tensor,
            expected="numbers in every tensor",
            found=f"NaN or Inf in {len(faults)} of {count}",
        )


def _one_line(fault: NotFinite) -> str:
    return f"{fault.file}: {fault.tensor}: {fault.nan} NaN, {fault.inf} Inf"
