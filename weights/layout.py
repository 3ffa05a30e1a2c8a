"""`Layout`: which published form a checkpoint has, and what shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nextn.weights.encoded_tensors import EncodedTensor
from nextn.weights.quantisation_metadata import DESCRIPTION_FILE, QuantisationMetadata

_NAMINGS = (
    ("Hugging Face names", ".self_attn."),
    ("Hugging Face default-save names", "embed_tokens."),
    ("Hugging Face default-save names", "hc_head.hc_"),
)


@dataclass(frozen=True)
class Layout:
    """How tensors are named and stored, each with its evidence. For messages: tensors are read one by one."""

    name: str
    evidence: str
    storage: str
    storage_evidence: str

    def __str__(self) -> str:
        return f"{self.name} (has {self.evidence}); {self.storage} ({self.storage_evidence})"


def detect_layout(
    disk_names: Collection[str], tensors: Mapping[str, EncodedTensor], metadata: QuantisationMetadata
) -> Layout:
    """The form of a checkpoint whose tensors have been found and encoded."""
    return Layout(*_naming(disk_names), *_storage(tensors, metadata))


def _naming(names: Collection[str]) -> tuple[str, str]:
    for naming, sign in _NAMINGS:
        for name in names:
            if sign in name:
                return naming, name
    for name in names:
        if name.startswith("model."):
            return "original names with a model. prefix", name
    telling = (name for name in names if ".attn." in name)
    return "original names", next(telling, next(iter(names), "no tensors"))


def _storage(tensors: Mapping[str, EncodedTensor], metadata: QuantisationMetadata) -> tuple[str, str]:
    first = {tensor.encoding: tensor for tensor in reversed(list(tensors.values()))}
    counts = Counter(tensor.encoding for tensor in tensors.values())
    if metadata.types is not None:
        return "ModelSlim W8A8", f"{DESCRIPTION_FILE}, {counts['int8_row']} int8 matrices"
    if "int8_row" in first:
        method = f"{metadata.method} " if metadata.method else ""
        return f"{method}int8 with a scale per row", _shown(first["int8_row"])
    forms = {"fp8_block": "fp8 with 128 x 128 blocks", "mxfp4": "mxfp4 in groups of 32"}
    found = [encoding for encoding in forms if encoding in first]
    if found:
        examples = ", ".join(_shown(first[encoding]) for encoding in first if encoding in found)
        return " and ".join(forms[encoding] for encoding in found), examples
    dtypes = Counter(tensor.data.dtype for tensor in tensors.values())
    return "not quantised", ", ".join(f"{count} {dtype}" for dtype, count in dtypes.most_common())


def _shown(tensor: EncodedTensor) -> str:
    assert tensor.scales is not None
    return f"{tensor.data.name} is {tensor.data.dtype} with {tensor.scales.dtype} scales"
