"""What a checkpoint is.

`--inspect` describes it and what would be built from it, and reads headers only; `--check-finite` reads all
of it and names every tensor with NaN or Inf in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from nextn.compile.build.plan import Plan, print_plan
from nextn.compile.build.progress import Meter, Progress, readable_bytes
from nextn.graphs.config import ModelConfig
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import state_table
from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.content_checks import NotFinite, find_not_finite
from nextn.weights.packed import NEXTN_PREFIX, packed_weights

_KINDS: dict[int, Literal["SWA", "C4", "C128"]] = {0: "SWA", 4: "C4", 128: "C128"}

_TOKEN_STEP = 128
"""Every compression ratio divides it, so that entries per token are exact over this many tokens."""


@dataclass(frozen=True)
class LayerSummary:
    """One Target layer: its attention, and how its experts are chosen."""

    layer: int
    attention: Literal["SWA", "C4", "C128"]
    routing: Literal["hash", "score"]


@dataclass(frozen=True)
class StoredBytes:
    """Tensors of one dtype on disk."""

    tensors: int
    bytes: int


@dataclass(frozen=True)
class Inspection:
    """A checkpoint described. Parameters are values of matrices and vectors; routing tables are none."""

    folder: str
    layout: str
    layout_evidence: str
    storage: str
    storage_evidence: str
    layers: tuple[LayerSummary, ...]
    parameters_target: int
    parameters_active: int
    """Of the Target, per token: all but the routed experts that are not chosen."""
    parameters_nextn: int
    bytes_by_dtype: dict[str, StoredBytes]
    nextn: bool
    draft: str
    max_seq_len: int
    kv_bytes_per_token: float
    """Growth with the capacity; windows and rings do not grow."""
    kv_bytes_per_request: int
    warnings: tuple[str, ...]

    def to_dict(self, plan: Plan) -> dict[str, Any]:
        """JSON values, with what would be built under `plan`."""
        return asdict(self) | {"plan": plan.to_dict()}


def inspect_checkpoint(checkpoint: Checkpoint, shape: SessionShape) -> Inspection:
    """The description of `checkpoint` with state sized by `shape`."""
    config, layout = checkpoint.config, checkpoint.layout
    target, active = _parameters(config)
    return Inspection(
        folder=str(checkpoint.folder),
        layout=layout.name,
        layout_evidence=layout.evidence,
        storage=layout.storage,
        storage_evidence=layout.storage_evidence,
        layers=tuple(
            LayerSummary(index, _KINDS[ratio], "hash" if index < config.num_hash_layers else "score")
            for index, ratio in enumerate(config.compress_ratios)
        ),
        parameters_target=target,
        parameters_active=active,
        parameters_nextn=_nextn_parameters(config) if checkpoint.has_nextn else 0,
        bytes_by_dtype=_bytes_by_dtype(checkpoint),
        nextn=checkpoint.has_nextn,
        draft=checkpoint.draft.found,
        max_seq_len=shape.max_seq_len,
        kv_bytes_per_token=_bytes_per_token(shape),
        kv_bytes_per_request=_state_bytes(shape),
        warnings=checkpoint.warnings,
    )


def print_inspection(found: Inspection, plan: Plan, console: Console) -> None:
    """The description for people, then the plan."""
    console.print(f"{found.folder}: {found.layout} (has {found.layout_evidence})", markup=False)
    console.print(f"stored as {found.storage} ({found.storage_evidence})", markup=False)
    console.print(f"draft: {found.draft}", markup=False)
    layers = Table("attention", "experts by", "layers", title=f"{len(found.layers)} Target layers")
    for (attention, routing), members in _grouped(found.layers).items():
        layers.add_row(attention, routing, members)
    console.print(layers)
    facts = Table("", "", show_header=False)
    facts.add_row("parameters, Target", f"{found.parameters_target:,}")
    facts.add_row("parameters, active per token", f"{found.parameters_active:,}")
    facts.add_row("parameters, NextN", f"{found.parameters_nextn:,}")
    for dtype, stored in found.bytes_by_dtype.items():
        facts.add_row(f"on disk, {dtype}", f"{readable_bytes(stored.bytes)} in {stored.tensors} tensors")
    facts.add_row("caches per token", f"{found.kv_bytes_per_token:.1f} B")
    facts.add_row(
        f"state per request of {found.max_seq_len} tokens", readable_bytes(found.kv_bytes_per_request)
    )
    console.print(facts)
    print_plan(plan, console)


def _grouped(layers: tuple[LayerSummary, ...]) -> dict[tuple[str, str], str]:
    """The layers of each kind, as text."""
    groups: dict[tuple[str, str], list[str]] = {}
    for layer in layers:
        groups.setdefault((layer.attention, layer.routing), []).append(str(layer.layer))
    return {kind: " ".join(members) for kind, members in groups.items()}


def _parameters(config: ModelConfig) -> tuple[int, int]:
    """Of the Target: all, and those that one token uses."""
    total = idle = 0
    for weight in packed_weights(config, with_nextn=False):
        if weight.role == "index":
            continue
        total += prod(weight.shape)
        if ".experts." in weight.name:
            unchosen = config.n_routed_experts - config.num_experts_per_tok
            idle += prod(weight.shape[1:]) * unchosen
    return total, total - idle


def _nextn_parameters(config: ModelConfig) -> int:
    weights = packed_weights(config, with_nextn=True)
    return sum(prod(weight.shape) for weight in weights if weight.name.startswith(NEXTN_PREFIX))


def _bytes_by_dtype(checkpoint: Checkpoint) -> dict[str, StoredBytes]:
    # The matrices of a stacked tensor are named after it, `name[expert][matrix]`.
    found: dict[str, set[tuple[Path, str]]] = {}
    sizes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        for stored in tensor.stored:
            found.setdefault(stored.dtype, set()).add((stored.file, stored.name.partition("[")[0]))
            sizes[stored.dtype] += stored.nbytes
    return {dtype: StoredBytes(len(found[dtype]), size) for dtype, size in sizes.most_common()}


def _state_bytes(shape: SessionShape) -> int:
    return sum(spec.nbytes(0) for spec in state_table(shape))


def _bytes_per_token(shape: SessionShape) -> float:
    longer = replace(shape, max_seq_len=shape.max_seq_len + _TOKEN_STEP)
    return (_state_bytes(longer) - _state_bytes(shape)) / _TOKEN_STEP


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
