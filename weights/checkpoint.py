"""`Checkpoint`: a folder with `config.json` and safetensors, opened and validated, not loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from nextn.graphs.config import ModelConfig, read_model_config
from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.original_names import Layout, detect_layout
from nextn.weights.packed import NEXTN_PREFIX, PackedWeight, SourcePart, iterate_packed_weights
from nextn.weights.shards import read_shards
from nextn.weights.stored_tensors import StoredTensor, by_original_name

FLOAT_DTYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
INDEX_DTYPES: Mapping[str, torch.dtype] = {"I32": torch.int32, "I64": torch.int64}

_DSPARK_MODULES = frozenset({"main_proj", "main_norm", "markov_head", "confidence_head"})


@dataclass(frozen=True)
class Checkpoint:
    """A validated checkpoint. Every tensor that `packed_weights(config, has_nextn)` needs is in `tensors`."""

    folder: Path
    config: ModelConfig
    layout: Layout
    has_nextn: bool
    tensors: Mapping[str, StoredTensor]
    """By original name (spec section 2.1)."""
    warnings: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path | str) -> Checkpoint:
        """Open and validate a checkpoint folder; reads JSON and headers only.

        Raises:
            CheckpointError: the config, a header or the index is invalid; a tensor is missing, unknown,
                mis-shaped or stored in a dtype this build does not read; the draft is not one NextN layer.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise CheckpointError("no such checkpoint folder", file=folder)
        config, warnings = read_model_config(folder)
        shards = read_shards(folder)
        tensors = by_original_name(shards.tensors, config.n_routed_experts)
        _check_draft(tensors)
        has_nextn = any(name.startswith(NEXTN_PREFIX) for name in tensors)
        if config.num_nextn_predict_layers and not has_nextn:
            warnings.append(f"{folder}: config.json counts a NextN layer, but there are no mtp.* tensors")
        _check_readable(tensors)
        _check_table(shards.origin, config, has_nextn, tensors)
        return cls(
            folder=folder,
            config=config,
            layout=detect_layout(shards.tensors),
            has_nextn=has_nextn,
            tensors=tensors,
            warnings=(*warnings, *shards.warnings),
        )

    def require_nextn(self, steps: int) -> None:
        """Refuse `steps` speculative steps when there is no NextN layer to draft with."""
        if steps >= 1 and not self.has_nextn:
            raise CheckpointError(
                "the checkpoint has no NextN layer to draft with; use --speculative-num-steps 0",
                file=self.folder,
                key="mtp.0",
                expected="mtp.0.* tensors",
                found="none",
            )

    def read(self, name: str) -> bytearray:
        """The stored bytes of the tensor with original name `name`."""
        stored = self.tensors[name]
        data = bytearray(stored.nbytes)
        try:
            with open(stored.file, "rb", buffering=0) as file:
                file.seek(stored.offset)
                view = memoryview(data)
                while view and (count := file.readinto(view)):
                    view = view[count:]
        except OSError as error:
            raise CheckpointError(
                "cannot read tensor", file=stored.file, key=stored.name, found=error.strerror
            ) from error
        if view:
            raise CheckpointError(
                "truncated file",
                file=stored.file,
                key=stored.name,
                expected=f"{stored.nbytes} bytes",
                found=f"{stored.nbytes - len(view)} bytes",
            )
        return data


def _check_draft(tensors: Mapping[str, StoredTensor]) -> None:
    """Refuse drafts that are not one NextN layer; tensors tell, `config.json` does not (spec section 1.6)."""
    draft = [name for name in tensors if name.startswith("mtp.")]
    for name in draft:
        if _DSPARK_MODULES.intersection(name.split(".")):
            raise CheckpointError(
                "the draft is DSpark, a different draft model; only a single NextN (MTP) layer is supported",
                file=tensors[name].file,
                key=tensors[name].name,
            )
    for name in draft:
        if not name.startswith(NEXTN_PREFIX):
            raise CheckpointError(
                "more than one NextN layer",
                file=tensors[name].file,
                key=tensors[name].name,
                expected="mtp.0 only",
            )


def _check_readable(tensors: Mapping[str, StoredTensor]) -> None:
    for stored in tensors.values():
        if stored.dtype not in FLOAT_DTYPES and stored.dtype not in INDEX_DTYPES:
            raise CheckpointError(
                "this build reads bfloat16, float16 and float32 checkpoints, not quantised ones",
                file=stored.file,
                key=stored.name,
                expected="BF16, F16 or F32",
                found=stored.dtype,
            )


def _check_table(
    origin: Path, config: ModelConfig, has_nextn: bool, tensors: Mapping[str, StoredTensor]
) -> None:
    expected_names: set[str] = set()
    for weight in iterate_packed_weights(config, has_nextn):
        for part in weight.parts:
            stored = tensors.get(part.name)
            if stored is None:
                raise CheckpointError(
                    "missing tensor", file=origin, key=part.name, expected=list(part.shape), found="nothing"
                )
            _check_part(weight, part, stored)
            expected_names.add(part.name)
    for name, stored in tensors.items():
        if name not in expected_names:
            raise CheckpointError(
                "unexpected tensor",
                file=stored.file,
                key=stored.name,
                expected="only tensors config.json implies",
            )


def _check_part(weight: PackedWeight, part: SourcePart, stored: StoredTensor) -> None:
    if stored.shape != part.shape:
        raise CheckpointError(
            "wrong tensor shape",
            file=stored.file,
            key=stored.name,
            expected=list(part.shape),
            found=list(stored.shape),
        )
    dtypes = INDEX_DTYPES if weight.role == "index" else FLOAT_DTYPES
    if stored.dtype not in dtypes:
        raise CheckpointError(
            "wrong tensor dtype",
            file=stored.file,
            key=stored.name,
            expected=" or ".join(dtypes),
            found=stored.dtype,
        )
