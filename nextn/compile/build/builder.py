"""Builds an artifact: weights, golden runs, graphs, tokenizer, manifest, in that order, then publishes it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nextn.compile.build.artifact_files import (
    PartialArtifact,
    WeightsHashes,
    file_sha256,
    weights_hashes,
)
from nextn.compile.build.existing import reusable
from nextn.compile.build.golden import write_golden
from nextn.compile.build.inputs import CompileInputs
from nextn.compile.build.plan import Plan, PlannedGraph
from nextn.compile.build.pool import WORKER_COMMAND, run_workers
from nextn.compile.build.progress import Meter, Progress, readable_bytes, warn
from nextn.compile.build.worker import GraphJob
from nextn.compile.build.workplace import Workplace, workplace
from nextn.compile.targets.fused_op import PLAIN, chosen_ops
from nextn.graphs.model import derived_constants
from nextn.graphs.state import input_table, state_table
from nextn.runtime.contract.golden_format import GOLDEN_FILE
from nextn.runtime.contract.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    FileRecord,
    GraphRecord,
    InputSpec,
    Manifest,
    WeightsFile,
    block_layouts,
    parse_manifest,
    to_json,
)
from nextn.runtime.contract.strict_json import decode
from nextn.weights.aligned_file import take_back
from nextn.weights.dequantise import Encoding
from nextn.weights.pack import PackedFile, load_packed, pack_weights
from nextn.weights.packed import packed_weights

KEPT_CODES: tuple[Encoding, ...] = ("int8_row",)
"""Of the ways that checkpoints store codes, those that graphs take."""

LOGS_FOLDER = "logs"
"""Of the partial artifact: logs of graphs that failed. Finishing the artifact removes them."""


@dataclass(frozen=True)
class Summary:
    """What a compile did. `graphs_reused` were compiled by an earlier, interrupted run."""

    artifact: str
    up_to_date: bool
    graphs: int
    graphs_compiled: int
    graphs_reused: int
    bytes: int
    weight_bytes: int
    seconds: float


def build_artifact(
    inputs: CompileInputs,
    plan: Plan,
    output: Path,
    *,
    force: bool,
    progress: Progress,
    worker_command: Sequence[str] = WORKER_COMMAND,
) -> Summary:
    """Builds `output`, or finds it up to date.

    Args:
        force: replace an artifact that is there and was made from other inputs.
        worker_command: the program that compiles one graph.

    Raises UsageError if `output` may not be replaced, CheckpointError if the weights cannot be read,
    ExecutionError if a graph does not compile, the disk is full, or, before anything is written, workers
    could not compile or no path is fit for a compiler's command line.
    """
    started = time.monotonic()
    existing = reusable(output, inputs, force)
    if existing is not None:
        return _summary(existing, output, started, compiled=None)
    inputs.target.check_workers(worker_command)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = PartialArtifact(output, inputs.identity)
    with workplace(partial.folder, output, runs_compiler=inputs.target.runs_compiler) as place, partial:
        builder = _Builder(inputs, plan, partial, place, progress, worker_command)
        manifest = builder.build()
    return _summary(manifest, output, started, compiled=builder.num_compiled)


class _Builder:
    """The steps of one build over one partial folder; each adopts what an earlier run finished."""

    def __init__(
        self,
        inputs: CompileInputs,
        plan: Plan,
        partial: PartialArtifact,
        place: Workplace,
        progress: Progress,
        worker_command: Sequence[str],
    ) -> None:
        self._inputs = inputs
        self._shape = inputs.shape
        self._plan = plan
        self._partial = partial
        self._place = place
        self._progress = progress
        self._worker_command = worker_command
        self._weights_file = inputs.target.weights_file
        self.num_compiled = 0
        self._fused_ops: dict[str, dict[str, None]] = {}
        """The fused ops that each op was given in some graph; a set that keeps its order."""

    def build(self) -> Manifest:
        weights = self._weights()
        golden = self._golden(weights)
        graphs = self._graphs()
        manifest = self._manifest(weights, golden, graphs, self._tokenizer())
        text = to_json(manifest)
        # The reader's own checks, before anything is published.
        manifest = parse_manifest(text, MANIFEST_FILE)
        files = {weights.file, golden.file, *(graph.file for graph in graphs)}
        files |= {record.file for record in manifest.tokenizer}
        for name, content in self._inputs.target.extra_files([graph.file for graph in graphs]).items():
            files.add(name)
            (self._partial.folder / name).write_text(content)
        self._partial.publish(files, text, MANIFEST_FILE)
        if names := self._inputs.target.unused_options(manifest.ops):
            warn(f"no graph calls {', '.join(names)}: no call has the shapes and dtypes that they take")
        return manifest

    def _weights(self) -> WeightsFile:
        stamp = self._inputs.weights_stamp
        kept = self._partial.adopt(self._weights_file, stamp, lambda path: weights_hashes(path).whole)
        if kept is None:
            started = time.monotonic()
            self._progress.line(f"checkpoint: {self._inputs.checkpoint.layout}")
            with self._progress.waiting("packing weights") as tell:
                kept = self._pack(stamp, Meter(tell))
            self._progress.line(f"weights packed {_cost(started, kept['bytes'])}")
        return decode(WeightsFile, kept)

    def _pack(self, stamp: str, meter: Meter) -> dict[str, Any]:
        """Packs at the final place, and not in scratch: what is interrupted continues from what it finds."""
        config = self._shape.config
        output = self._partial.folder / self._weights_file
        kept: dict[str, Any] = {}

        def finished(packed: PackedFile) -> None:
            hashes = WeightsHashes(
                packed.bytes, packed.header_bytes, packed.header_sha256, packed.body_sha256
            )
            kept.update({"file": self._weights_file, **asdict(hashes), "tensors": packed.entries})
            self._partial.record(self._weights_file, stamp, kept, hashes.whole)

        output.parent.mkdir(exist_ok=True)
        # A file whose record does not fit: of a run killed before it wrote one, or of other weights.
        take_back(output)
        pack_weights(
            self._inputs.checkpoint,
            packed_weights(config, self._shape.num_steps > 0),
            getattr(torch, self._shape.dtype),
            output,
            extra=derived_constants(config),
            progress=meter,
            keep=KEPT_CODES if self._shape.stored_layouts else (),
            finished=finished,
        )
        return kept

    def _golden(self, weights: WeightsFile) -> FileRecord:
        made_from = f"{self._inputs.identity} {weights.body_sha256}"
        kept = self._partial.adopt(GOLDEN_FILE, made_from)
        if kept is None:
            started = time.monotonic()
            with self._progress.waiting("recording golden runs"):
                temporary = self._partial.scratch() / GOLDEN_FILE
                write_golden(self._shape, load_packed(self._partial.folder / self._weights_file), temporary)
                kept = asdict(_file_record(temporary, GOLDEN_FILE))
                self._partial.keep(temporary, GOLDEN_FILE, made_from, kept)
            self._progress.line(f"golden runs recorded {_cost(started, kept['bytes'])}")
        return decode(FileRecord, kept)

    def _graphs(self) -> tuple[GraphRecord, ...]:
        records: dict[str, dict[str, Any]] = {}
        jobs = []
        scratch = self._partial.scratch()
        target = self._inputs.target
        for graph in self._plan.graphs:
            kept = self._partial.adopt(target.graph_file(graph.key), self._inputs.identity)
            if kept is not None:
                records[graph.key] = kept
                continue
            jobs.append(self._job(graph, scratch / f"{graph.key}{target.suffix}"))
        if records:
            self._progress.line(
                f"{len(records)} of {len(self._plan.graphs)} graphs kept from an interrupted run"
            )

        def finished(job: GraphJob, description: Mapping[str, Any], seconds: float) -> None:
            file = target.graph_file(job.key)
            records[job.key] = {**description, "file": file}
            self._partial.keep(job.output, file, self._inputs.identity, records[job.key])
            self.num_compiled += 1
            place = f"[{len(records)}/{len(self._plan.graphs)}]"
            size = readable_bytes(description["bytes"])
            self._progress.line(f"{place} {job.key} compiled in {seconds:.1f} s ({size})")

        with self._progress.waiting("compiling graphs"):
            run_workers(
                jobs,
                num_workers=self._plan.compile_jobs,
                scratch=self._place.path(scratch),
                logs=self._partial.folder / LOGS_FOLDER,
                environment={
                    **target.worker_environment(self._place.path(scratch)),
                    **self._place.environment,
                },
                finished=finished,
                command=self._worker_command,
            )
        for graph in self._plan.graphs:
            for op, fused in records[graph.key].pop("fused_ops", {}).items():
                self._fused_ops.setdefault(op, {}).update(dict.fromkeys(fused.split(", ")))
        return tuple(decode(GraphRecord, records[graph.key]) for graph in self._plan.graphs)

    def _chosen_ops(self) -> dict[str, str]:
        """What ops of the graphs became, where the target chooses; an op that no graph has is plain."""
        plain = dict.fromkeys(chosen_ops(self._inputs.target.fused_ops()), PLAIN)
        return plain | {op: ", ".join(fused) for op, fused in self._fused_ops.items()}

    def _job(self, graph: PlannedGraph, file: Path) -> GraphJob:
        return GraphJob(
            graph.name,
            graph.batch,
            self._shape,
            self._inputs.target,
            self._inputs.toolchain.tools,
            file,
            self._partial.folder / self._weights_file,
        )

    def _tokenizer(self) -> tuple[FileRecord, ...]:
        records = self._inputs.tokenizer_records()
        for record in records:
            shutil.copyfile(self._inputs.checkpoint.folder / record.file, self._partial.folder / record.file)
        return records

    def _manifest(
        self,
        weights: WeightsFile,
        golden: FileRecord,
        graphs: tuple[GraphRecord, ...],
        tokenizer: tuple[FileRecord, ...],
    ) -> Manifest:
        inputs = self._inputs
        ops = inputs.ops | self._chosen_ops()
        return Manifest(
            format_version=FORMAT_VERSION,
            manifest_sha256="",
            producer=inputs.producer,
            target=inputs.target_record,
            model=inputs.model,
            speculation=inputs.speculation,
            limits=inputs.limits,
            state=tuple(state_table(self._shape)),
            inputs=tuple(InputSpec(item.name, item.dtype, item.shape) for item in input_table(self._shape)),
            blocks=block_layouts(),
            requires=inputs.target.requires(ops),
            ops=ops,
            graphs=graphs,
            weights=weights,
            golden=golden,
            tokenizer=tokenizer,
        )


def _file_record(path: Path, name: str) -> FileRecord:
    return FileRecord(name, path.stat().st_size, file_sha256(path))


def _cost(started: float, count: int) -> str:
    return f"in {time.monotonic() - started:.1f} s ({readable_bytes(count)})"


def _summary(manifest: Manifest, output: Path, started: float, compiled: int | None) -> Summary:
    records: list[GraphRecord | FileRecord] = [*manifest.graphs, manifest.golden, *manifest.tokenizer]
    return Summary(
        artifact=str(output),
        up_to_date=compiled is None,
        graphs=len(manifest.graphs),
        graphs_compiled=compiled or 0,
        graphs_reused=0 if compiled is None else len(manifest.graphs) - compiled,
        bytes=manifest.weights.bytes + sum(record.bytes for record in records),
        weight_bytes=manifest.weights.bytes,
        seconds=round(time.monotonic() - started, 3),
    )
