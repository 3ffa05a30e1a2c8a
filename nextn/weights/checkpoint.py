"""`Checkpoint`: a folder with `config.json` and safetensors, opened and validated, not loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nextn.graphs.config import ModelConfig
from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint_files import CONFIG_FILES, TOKENIZER_FILES, refuse_link_out
from nextn.weights.config_json import read_model_config
from nextn.weights.drafts import (
    Draft,
    classify_draft,
    damaged_draft,
    refuse_other_architectures,
    refuse_other_config,
)
from nextn.weights.encoded_tensors import EncodedTensor, TensorEncoder
from nextn.weights.layout import Layout, LayoutPart, detect_layout
from nextn.weights.original_names import is_draft_name
from nextn.weights.packed import PackedWeight, iterate_packed_weights, nextn_weights
from nextn.weights.quantisation_metadata import DESCRIPTION_FILE, QuantisationMetadata
from nextn.weights.rope_tables import is_rope_table, rope_table_warnings
from nextn.weights.shards import Shards, read_shards
from nextn.weights.stored_tensors import StoredTensor, by_original_name, copies_of_shared

_HASH_PIECE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class SharedCopies:
    """Copies of tensors of the Target in the folder that the draft comes from.

    `tensors` are under the Target's names (`embed.weight`, `head.weight`, and their scales); `metadata` and
    `origin` are those of the folder.
    """

    tensors: Mapping[str, StoredTensor]
    metadata: QuantisationMetadata
    origin: Path


@dataclass(frozen=True)
class Checkpoint:
    """A validated checkpoint. Every tensor that `packed_weights(config, has_nextn)` needs is in `tensors`."""

    folder: Path
    draft_folder: Path | None
    """The folder that `mtp.*` comes from, if it is not `folder`."""
    config: ModelConfig
    layout: Layout
    draft: Draft
    tensors: Mapping[str, EncodedTensor]
    """By original name."""
    warnings: tuple[str, ...]
    shared_copies: SharedCopies
    described_but_absent: tuple[str, ...] = ()
    """Tensors that the description of an export names and the checkpoint lacks."""

    @property
    def has_nextn(self) -> bool:
        return self.draft.kind == "nextn"

    @classmethod
    def open(
        cls, folder: Path | str, draft_folder: Path | str | None = None, *, draft_needed: bool = True
    ) -> Checkpoint:
        """Open and validate a checkpoint folder; reads JSON and headers only.

        Args:
            folder: the Target, and NextN if it is there.
            draft_folder: a folder whose `mtp.*` tensors are used instead of those of `folder`.
            draft_needed: without, a damaged draft in `folder` is a warning and the Target is used alone.

        Raises:
            CheckpointError: the config, a header or the index is invalid; a tensor is missing, unknown,
                mis-shaped or stored in no published layout; a file is a link that leaves
                its folder; the draft folder holds no NextN layer or one of another architecture.
        """
        source = _Source(Path(folder))
        for name in TOKENIZER_FILES:
            refuse_link_out(source.folder, source.folder / name)
        refuse_other_architectures(source.shards.tensors)
        config, warnings = read_model_config(source.folder)
        draft_source = source
        if draft_folder is not None:
            draft_source = _Source(Path(draft_folder), wanted=is_draft_name)
            refuse_other_config(config, draft_source.folder)
        target = source.tensors(config, draft=False)
        encoded = _encode(iterate_packed_weights(config, with_nextn=False), source, target)
        try:
            draft, draft_encoded = _read_draft(config, draft_source)
        except CheckpointError as error:
            if draft_needed or draft_folder is not None:
                raise
            draft, draft_encoded = damaged_draft(error), {}
        if draft_folder is not None:
            draft.require_nextn(draft_source.folder)
        warnings += _draft_warnings(source.folder, config, draft)
        if draft_folder is not None and source.shards.draft_fault is not None:
            warnings.append(
                f"the checkpoint's own draft is damaged, and not used: {source.shards.draft_fault}"
            )
        for origin in dict.fromkeys((source, draft_source)):
            warnings += origin.shards.warnings
            warnings += rope_table_warnings(origin.shards.tensors, config)
        return cls(
            folder=source.folder,
            draft_folder=None if draft_source is source else draft_source.folder,
            config=config,
            layout=detect_layout(
                source.part(encoded, draft=False), draft_source.part(draft_encoded, draft=True)
            ),
            draft=draft,
            tensors=encoded | draft_encoded,
            warnings=tuple(dict.fromkeys(warnings)),
            shared_copies=draft_source.copies_of_shared(),
            # Tensors of a damaged shard are absent only because it could not be read.
            described_but_absent=()
            if source.shards.draft_fault
            else source.metadata.absent(source.shards.tensors),
        )

    def require_nextn(self, steps: int) -> None:
        """Refuse `steps` speculative steps when there is no NextN layer to draft with."""
        if steps >= 1:
            self.draft.require_nextn(self.folder)

    def source_record(self, name: str, stored: StoredTensor, sha256: str) -> tuple[str, str, str]:
        """The manifest's record of a tensor on disk: file, name in it, SHA-256 of its bytes.

        Files are relative to the checkpoint; those of a separate draft folder are under `draft/`.

        Args:
            name: the original name of the tensor it belongs to. It decides between the two folders, since one
                may lie in the other, or be the other.
            stored: the tensor on disk.
            sha256: of its bytes.
        """
        if self.draft_folder is not None and is_draft_name(name):
            file = Path("draft") / stored.file.relative_to(self.draft_folder)
        else:
            file = stored.file.relative_to(self.folder)
        return file.as_posix(), stored.name, sha256

    def source_records(self, name: str) -> list[tuple[str, str, str]]:
        """The records of every tensor on disk that holds a part of the original one; reads them whole."""
        records = []
        for stored in self.tensors[name].stored:
            digest = hashlib.sha256()
            for data in stored.read(_HASH_PIECE_BYTES):
                digest.update(data)
            records.append(self.source_record(name, stored, digest.hexdigest()))
        return records


class _Source:
    """One folder of tensors, with its metadata about their quantisation.

    Args:
        folder: with or without a config.
        wanted: see `read_shards`.
    """

    def __init__(self, folder: Path, wanted: Callable[[str], bool] | None = None) -> None:
        if not folder.is_dir():
            raise CheckpointError("no such checkpoint folder", file=folder)
        self.folder = folder
        for name in (*CONFIG_FILES, DESCRIPTION_FILE):
            refuse_link_out(folder, folder / name)
        self.shards: Shards = read_shards(folder, wanted)
        self.metadata = QuantisationMetadata.read(folder)

    def tensors(self, config: ModelConfig, draft: bool) -> dict[str, StoredTensor]:
        """Those of the draft, or all others, by original name."""
        found = {
            name: item
            for name, item in self.shards.tensors.items()
            if is_draft_name(name) == draft and not is_rope_table(name)
        }
        return by_original_name(found, config.n_routed_experts)

    def copies_of_shared(self) -> SharedCopies:
        """What the draft in this folder repeats of the Target."""
        return SharedCopies(copies_of_shared(self.shards.tensors), self.metadata, self.shards.origin)

    def part(self, encoded: Mapping[str, EncodedTensor], draft: bool) -> LayoutPart:
        """The tensors of the draft, or all others, from which their layout is detected."""
        names = [name for name in self.shards.tensors if is_draft_name(name) == draft]
        return LayoutPart(names, list(encoded.values()), self.metadata)


def _read_draft(config: ModelConfig, source: _Source) -> tuple[Draft, dict[str, EncodedTensor]]:
    """The draft, and its tensors if it is a NextN layer."""
    if source.shards.draft_fault is not None:
        raise source.shards.draft_fault
    stored = source.tensors(config, draft=True)
    draft = classify_draft(stored, source.shards.unread_draft)
    if draft.kind != "nextn":
        return draft, {}
    return draft, _encode(nextn_weights(config), source, stored)


def _draft_warnings(folder: Path, config: ModelConfig, draft: Draft) -> list[str]:
    counted = config.num_nextn_predict_layers
    if draft.kind == "nextn":
        if counted <= 1:
            return []
        return [f"{folder}: config.json counts {counted} NextN layers, the tensors hold one, which is used"]
    if draft.kind == "none" and not counted:
        return []
    if draft.fault is not None:
        return [f"{draft.found}; the Target is used alone"]
    return [f"{folder}: {draft.found}, whatever config.json counts; it cannot be drafted with"]


def _encode(
    weights: Iterable[PackedWeight], source: _Source, stored: Mapping[str, StoredTensor]
) -> dict[str, EncodedTensor]:
    """Every tensor that `weights` come from, each found exactly once, and nothing else."""
    encoder = TensorEncoder(stored, source.metadata, source.shards.origin)
    tensors = {part.name: encoder.encode(weight, part) for weight in weights for part in weight.parts}
    encoder.refuse_unused()
    return tensors
