"""`CompileInputs`: everything an artifact is made from, and whether a manifest was made from the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import torch

import nextn.compile
import nextn.graphs
import nextn.runtime.contract
import nextn.weights
from nextn.compile.build.artifact_files import file_sha256
from nextn.compile.targets.fused_op import known_ops
from nextn.compile.targets.target import Target, Tools
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract import manifest as contract
from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.manifest import (
    ComputeDtype,
    FileRecord,
    Limits,
    Manifest,
    ModelRecord,
    Producer,
    Speculation,
)
from nextn.runtime.contract.version import TORCH_VERSION, VERSION
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.checkpoint_files import TOKENIZER_FILES
from nextn.weights.packed import packed_weights

DEMO = "demo"


def checkpoint_folder(name: str) -> Path:
    """The folder a CHECKPOINT argument means; `demo` is the checkpoint inside the package."""
    return Path(nextn.weights.__path__[0]) / "demo" if name == DEMO else Path(name)


@dataclass(frozen=True)
class Toolchain:
    """What compiles. Graphs made by an equal one are interchangeable.

    `sources_sha256` covers the Python files that decide what a graph computes and how it is built.
    """

    nextn: str
    sources_sha256: str
    torch: str
    tools: Tools


def detect_toolchain(target: Target) -> Toolchain:
    """What compiles for a target here.

    Raises ExecutionError for another torch, and the errors of `Target.tools`.
    """
    found = torch.__version__.split("+")[0]
    if found != TORCH_VERSION:
        raise ExecutionError(
            "graphs compile with one torch version only", expected=TORCH_VERSION, found=found
        )
    return Toolchain(VERSION, _sources_sha256(), found, target.tools())


def _sources_sha256() -> str:
    digest = hashlib.sha256()
    for package in (nextn.compile, nextn.graphs, nextn.runtime.contract, nextn.weights):
        folder = Path(package.__path__[0])
        for file in sorted(folder.rglob("*.py")):
            name = file.relative_to(folder)
            # The bundled checkpoint lies under weights/; its own files are no part of the tool.
            if name.parts[0] != "demo":
                digest.update(f"{package.__name__}/{name.as_posix()}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@dataclass(frozen=True)
class CompileInputs:
    """A checkpoint, the shapes it is compiled to, and what compiles it.

    `command` is kept for the record.
    """

    checkpoint: Checkpoint
    shape: SessionShape
    target: Target
    toolchain: Toolchain
    command: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Hash of everything that decides the graphs; the checkpoint's weights are not among it."""
        shape = asdict(self.shape) | {"config": self.shape.config.to_dict()}
        described = [shape, asdict(self.toolchain), self.target.name, asdict(self.target)]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    @property
    def weights_stamp(self) -> str:
        """Changes when a checkpoint file is replaced; cheap, as it reads no weights."""
        files = {stored.file for tensor in self.checkpoint.tensors.values() for stored in tensor.stored}
        status = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
        return hashlib.sha256(json.dumps([self.identity, status]).encode()).hexdigest()

    @property
    def producer(self) -> Producer:
        made_by = self.toolchain
        return Producer(
            made_by.nextn, made_by.torch, made_by.tools.compiler, made_by.sources_sha256, self.command
        )

    @property
    def target_record(self) -> contract.Target:
        target, features = self.target, self.toolchain.tools.cpu_features
        dtype = cast(ComputeDtype, self.shape.dtype)
        return contract.Target(target.device, target.name, dtype, features, target.soc, world_size=1, rank=0)

    @property
    def ops(self) -> dict[str, str]:
        """Those that do not depend on the graphs."""
        target = self.target
        return known_ops(target.fused_ops(), target.fixed_ops) | target.recorded_options()

    @property
    def model(self) -> ModelRecord:
        config = self.shape.config
        # Through JSON, so that it compares equal to what a manifest gives back.
        canonical = json.loads(json.dumps(config.to_dict()))
        return ModelRecord(
            canonical, config.sha256(), config.vocab_size, config.bos_token_id, config.eos_token_ids
        )

    @property
    def speculation(self) -> Speculation:
        return Speculation(self.shape.num_steps, self.shape.window_rows)

    @property
    def limits(self) -> Limits:
        shape = self.shape
        return Limits(shape.max_seq_len, shape.prefill_chunk, shape.batch_sizes, shape.slots, MAX_WINDOW_ROWS)

    def tokenizer_records(self) -> tuple[FileRecord, ...]:
        """The checkpoint's files about text that an artifact carries along."""
        paths = [self.checkpoint.folder / name for name in TOKENIZER_FILES]
        return tuple(
            FileRecord(path.name, path.stat().st_size, file_sha256(path)) for path in paths if path.is_file()
        )

    def made(self, manifest: Manifest) -> bool:
        """Whether `manifest` was made from these very inputs. Reads the whole checkpoint if all else fits."""
        recorded = replace(manifest.producer, command=self.command)
        target = self.target.as_compiled(manifest.target)
        return (
            (recorded, target, manifest.model, manifest.speculation, manifest.limits)
            == (self.producer, self.target_record, self.model, self.speculation, self.limits)
            and self.ops.items() <= manifest.ops.items()
            and manifest.tokenizer == self.tokenizer_records()
            and self._same_weights(manifest)
        )

    def _same_weights(self, manifest: Manifest) -> bool:
        layouts = {weight.name: weight.storage.layout for weight in manifest.weights.tensors}
        coded = {name: layout for name, layout in layouts.items() if layout != "plain"}
        if coded != dict(self.shape.stored_layouts):
            return False
        recorded = {source for weight in manifest.weights.tensors for source in weight.source}
        weights = packed_weights(self.shape.config, self.shape.num_steps > 0)
        names = [part.name for weight in weights for part in weight.parts]
        expected = sum(len(self.checkpoint.tensors[name].stored) for name in names)
        return expected == len(recorded) and all(
            record in recorded for name in names for record in self.checkpoint.source_records(name)
        )
