"""`CompileInputs`: everything an artifact is made from, and whether a manifest was made from the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import nextn.weights
from nextn.compile.build.hashes import file_sha256
from nextn.compile.build.toolchain import Toolchain
from nextn.compile.targets.lowering import Lowering
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS
from nextn.runtime.contract.manifest import (
    ComputeDtype,
    FileRecord,
    Limits,
    Manifest,
    ModelRecord,
    Producer,
    Speculation,
    Target,
)
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.checkpoint_files import TOKENIZER_FILES
from nextn.weights.packed import packed_weights

DEMO = "demo"


def checkpoint_folder(name: str) -> Path:
    """The folder a CHECKPOINT argument means; `demo` is the checkpoint inside the package."""
    return Path(nextn.weights.__path__[0]) / "demo" if name == DEMO else Path(name)


@dataclass(frozen=True)
class CompileInputs:
    """A checkpoint, the shapes it is compiled to, and what compiles it.

    `command` is kept for the record; `soc` is the chip whose limits chose the graphs; `custom_ops` are
    operators beside torch_npu's own that graphs may call.
    """

    checkpoint: Checkpoint
    shape: SessionShape
    lowering: Lowering
    toolchain: Toolchain
    command: tuple[str, ...]
    soc: str | None = None
    custom_ops: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Hash of everything that decides the graphs; the checkpoint's weights are not among it."""
        shape = asdict(self.shape) | {"config": self.shape.config.to_dict()}
        described = [shape, asdict(self.toolchain), self.lowering.device, self.lowering.emit, self.custom_ops]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    @property
    def weights_stamp(self) -> str:
        """Changes when a checkpoint file is replaced; cheap, as it reads no weights."""
        files = {stored.file for tensor in self.checkpoint.tensors.values() for stored in tensor.stored}
        status = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
        return hashlib.sha256(json.dumps([self.identity, status]).encode()).hexdigest()

    @property
    def producer(self) -> Producer:
        tools = self.toolchain
        return Producer(tools.nextn, tools.torch, tools.compiler, tools.sources_sha256, self.command)

    @property
    def target(self) -> Target:
        dtype = cast(ComputeDtype, self.shape.dtype)
        features = self.toolchain.instruction_set.features
        lowering = self.lowering
        return Target(lowering.device, lowering.emit, dtype, features, self.soc, world_size=1, rank=0)

    @property
    def ops(self) -> dict[str, str]:
        """Those that do not depend on the graphs."""
        chosen = self.lowering.chosen_ops
        fixed = {op: form for op, form in self.lowering.ops.items() if op not in chosen}
        return fixed | ({"custom_ops": ",".join(self.custom_ops) or "none"} if chosen else {})

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
        target = manifest.target
        if (self.lowering.emit, target.emit) == ("air", "om"):  # the same, with what atc made of it
            target = replace(target, emit="air", soc=self.soc)
        return (
            (recorded, target, manifest.model, manifest.speculation, manifest.limits)
            == (self.producer, self.target, self.model, self.speculation, self.limits)
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
