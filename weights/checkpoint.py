"""`Checkpoint`: a folder with `config.json` and safetensors, opened and validated, not loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nextn.graphs.config import ModelConfig, read_model_config
from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.drafts import DRAFT_PREFIX, Draft, classify_draft, refuse_other_architectures
from nextn.weights.encoded_tensors import EncodedTensor, TensorEncoder
from nextn.weights.layout import Layout, detect_layout
from nextn.weights.packed import NEXTN_PREFIX, iterate_packed_weights
from nextn.weights.quantisation_metadata import QuantisationMetadata
from nextn.weights.shards import Shards, read_shards
from nextn.weights.stored_tensors import StoredTensor, by_original_name

_HASH_PIECE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Checkpoint:
    """A validated checkpoint. Every tensor that `packed_weights(config, has_nextn)` needs is in `tensors`."""

    folder: Path
    draft_folder: Path | None
    """Where `mtp.*` comes from if not from `folder`."""
    config: ModelConfig
    layout: Layout
    draft: Draft
    tensors: Mapping[str, EncodedTensor]
    """By original name (spec section 2.1)."""
    warnings: tuple[str, ...]

    @property
    def has_nextn(self) -> bool:
        return self.draft.kind == "nextn"

    @classmethod
    def open(cls, folder: Path | str, draft_folder: Path | str | None = None) -> Checkpoint:
        """Open and validate a checkpoint folder; reads JSON and headers only.

        Args:
            folder: the Target, and NextN if it is there.
            draft_folder: a folder whose `mtp.*` tensors are used instead of those of `folder`.

        Raises:
            CheckpointError: the config, a header or the index is invalid; a tensor is missing, unknown,
                mis-shaped or stored in a way that is none of the published ones.
        """
        source = _Source(Path(folder))
        refuse_other_architectures(source.shards.tensors)
        config, warnings = read_model_config(source.folder)
        stored = by_original_name(source.shards.tensors, config.n_routed_experts)
        draft_source, draft_stored = source, _draft_part(stored)
        if draft_folder is not None:
            draft_source = _Source(Path(draft_folder))
            draft_stored = _draft_part(by_original_name(draft_source.shards.tensors, config.n_routed_experts))
        draft = classify_draft(draft_stored)
        if draft_folder is not None:
            draft.require_nextn(draft_source.folder)
        elif draft.kind != "nextn" and (draft_stored or config.num_nextn_predict_layers):
            warnings.append(
                f"{folder}: {draft.found}, whatever config.json counts; it cannot be drafted with"
            )
        elif config.num_nextn_predict_layers > 1:
            warnings.append(
                f"{folder}: config.json counts {config.num_nextn_predict_layers} NextN layers, the tensors "
                "hold one, which is used"
            )
        target_stored = {name: item for name, item in stored.items() if not name.startswith(DRAFT_PREFIX)}
        tensors = _encode(
            config, source, target_stored, draft_source, draft_stored if draft.kind == "nextn" else {}
        )
        warnings += source.shards.warnings
        if draft_source is not source:
            warnings += draft_source.shards.warnings
        return cls(
            folder=source.folder,
            draft_folder=None if draft_source is source else draft_source.folder,
            config=config,
            layout=detect_layout(source.shards.tensors, tensors, source.metadata),
            draft=draft,
            tensors=tensors,
            warnings=tuple(warnings),
        )

    def require_nextn(self, steps: int) -> None:
        """Refuse `steps` speculative steps when there is no NextN layer to draft with."""
        if steps >= 1:
            self.draft.require_nextn(self.folder)

    def source_record(self, stored: StoredTensor, sha256: str) -> tuple[str, str, str]:
        """What a manifest says of a tensor on disk: file, name in it, SHA-256 of its bytes.

        Files are relative to the checkpoint; those of a separate draft folder are under `draft/`.
        """
        if self.draft_folder is not None and stored.file.is_relative_to(self.draft_folder):
            file = Path("draft") / stored.file.relative_to(self.draft_folder)
        else:
            file = stored.file.relative_to(self.folder)
        return file.as_posix(), stored.name, sha256

    def source_records(self, name: str) -> list[tuple[str, str, str]]:
        """The records of every tensor on disk behind the original name; reads them whole."""
        records = []
        for stored in self.tensors[name].stored:
            digest = hashlib.sha256()
            for data in stored.read(_HASH_PIECE_BYTES):
                digest.update(data)
            records.append(self.source_record(stored, digest.hexdigest()))
        return records


class _Source:
    """One folder of tensors and what it says about their quantisation."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CheckpointError("no such checkpoint folder", file=folder)
        self.folder = folder
        self.shards: Shards = read_shards(folder)
        self.metadata = QuantisationMetadata.read(folder)


def _draft_part(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    return {name: item for name, item in stored.items() if name.startswith(DRAFT_PREFIX)}


def _encode(
    config: ModelConfig,
    target: _Source,
    target_stored: Mapping[str, StoredTensor],
    draft: _Source,
    draft_stored: Mapping[str, StoredTensor],
) -> dict[str, EncodedTensor]:
    """Every tensor the architecture has, each found exactly once, and nothing else."""
    target_encoder = TensorEncoder(target_stored, target.metadata, target.shards.origin)
    draft_encoder = TensorEncoder(draft_stored, draft.metadata, draft.shards.origin)
    tensors: dict[str, EncodedTensor] = {}
    for weight in iterate_packed_weights(config, with_nextn=bool(draft_stored)):
        encoder = draft_encoder if weight.name.startswith(NEXTN_PREFIX) else target_encoder
        for part in weight.parts:
            tensors[part.name] = encoder.encode(weight, part)
    target_encoder.refuse_unused()
    draft_encoder.refuse_unused()
    return tensors
