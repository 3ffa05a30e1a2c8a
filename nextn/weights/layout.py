"""`Layout`: the published layout of a checkpoint, with the tensors that show it.

Source: docs/design.md, "Published layouts".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nextn.weights.dequantise import Encoding
from nextn.weights.encoded_tensors import EncodedTensor
from nextn.weights.quantisation_metadata import DESCRIPTION_FILE, QuantisationMetadata

_QUANTISED: Mapping[Encoding, str] = {
    "int8_row": "int8 with a scale per row",
    "fp8_block": "fp8 with 128 x 128 blocks",
    "mxfp4": "mxfp4 in groups of 32",
}


_INT8_METHODS = ("compressed-tensors",)
"""Methods that messages name beside the layout; a config that names fp8 says nothing about int8 tensors."""


@dataclass(frozen=True)
class Layout:
    """How tensors are named and stored, each with its evidence.

    Only messages use it: tensors are read one by one, each by its own encoding.
    """

    name: str
    evidence: str
    storage: str
    storage_evidence: str

    def __str__(self) -> str:
        return f"{self.name} (has {self.evidence}); {self.storage} ({self.storage_evidence})"


@dataclass(frozen=True)
class LayoutPart:
    """The Target or the draft of a checkpoint, from the folder it comes from."""

    disk_names: Sequence[str]
    tensors: Sequence[EncodedTensor]
    metadata: QuantisationMetadata


def detect_layout(target: LayoutPart, draft: LayoutPart) -> Layout:
    """The layout of a checkpoint from its encoded tensors; without NextN, `draft` has no tensors."""
    name, name_evidence = _naming(target.disk_names)
    storage, storage_evidence = _storage(target)
    if draft.tensors:
        draft_name, draft_name_evidence = _naming(draft.disk_names)
        if draft_name != name:
            name, name_evidence = f"{name}, draft in {draft_name}", f"{name_evidence}; {draft_name_evidence}"
        draft_storage, draft_evidence = _storage(draft)
        if draft_storage != storage:
            storage = f"{storage}; draft {draft_storage}"
        storage_evidence = f"Target {storage_evidence}; draft {draft_evidence}"
    return Layout(name, name_evidence, storage, storage_evidence)


def _naming(names: Sequence[str]) -> tuple[str, str]:
    native = _first(names, lambda name: ".self_attn." in name)
    saved = _first(names, lambda name: "embed_tokens." in name or "hc_head.hc_" in name)
    original = _first(names, lambda name: ".attn." in name)
    if native and original:
        return "mixed names", f"{native} and {original}"
    if native or saved:
        return ("Hugging Face names", native) if native else ("Hugging Face default-save names", str(saved))
    prefixed = _first(names, lambda name: name.startswith("model."))
    bare = _first(names, lambda name: not name.startswith("model."))
    if prefixed and bare:
        return "mixed names", f"{prefixed} and {bare}"
    if prefixed:
        return "original names with a model. prefix", prefixed
    return "original names", original or bare or "no tensors"


def _first(names: Sequence[str], shows: Callable[[str], bool]) -> str | None:
    return next((name for name in names if shows(name)), None)


def _storage(part: LayoutPart) -> tuple[str, str]:
    """The quantised layouts, and as evidence every layout with its count and an example."""
    examples = {tensor.encoding: tensor for tensor in reversed(part.tensors)}
    counts = Counter(tensor.encoding for tensor in part.tensors)
    layouts, evidence = [], []
    for encoding, name in _QUANTISED.items():
        if encoding not in examples:
            continue
        evidence.append(f"{counts[encoding]} {encoding}: {_shown(examples[encoding])}")
        if encoding == "int8_row" and _is_described(part):
            name = "ModelSlim W8A8"
            evidence[-1] += f", {DESCRIPTION_FILE}"
        elif encoding == "int8_row" and part.metadata.method in _INT8_METHODS:
            name = f"{part.metadata.method} {name}"
        layouts.append(name)
    plain = Counter(tensor.data.dtype for tensor in part.tensors if tensor.encoding == "plain")
    evidence += [f"{count} {dtype}" for dtype, count in plain.most_common()]
    return " and ".join(layouts) or "not quantised", ", ".join(evidence)


def _is_described(part: LayoutPart) -> bool:
    types = part.metadata.types or {}
    return any(tensor.encoding == "int8_row" and tensor.data.name in types for tensor in part.tensors)


def _shown(tensor: EncodedTensor) -> str:
    assert tensor.scales is not None
    return f"{tensor.data.name} is {tensor.data.dtype} with {tensor.scales.dtype} scales"
