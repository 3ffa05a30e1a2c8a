"""Which draft a checkpoint carries: its tensors tell, `config.json` does not (spec section 1.6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.packed import NEXTN_PREFIX
from nextn.weights.shards import ShardTensor

DraftKind = Literal["nextn", "none", "dspark", "several", "foreign"]

DRAFT_PREFIX = "mtp."

_DSPARK_MODULES = frozenset({"main_proj", "main_norm", "markov_head", "confidence_head"})

# What makes an MTP block the NextN layer of DeepSeek-V4: it norms the embedding before fusing it.
_FUSION_NORM = f"{NEXTN_PREFIX}enorm.weight"

_INSTEAD = (
    "use --speculative-num-steps 0 for plain decoding, or --speculative-draft-model-path with a folder that "
    "holds the mtp.0 tensors of DeepSeek-V4"
)


@dataclass(frozen=True)
class Draft:
    """The draft found, a tensor that shows it, and what to say when it cannot draft."""

    kind: DraftKind
    evidence: str | None
    found: str

    def require_nextn(self, folder: Path) -> None:
        """Raise unless the draft is a NextN layer; the sentence says what was found and what to use."""
        if self.kind != "nextn":
            raise CheckpointError(
                f"{self.found}; {_INSTEAD}",
                file=folder,
                key=self.evidence or "mtp.0",
                expected="one NextN layer, mtp.0",
                found="none" if self.kind == "none" else self.evidence,
            )


def classify_draft(names: Iterable[str]) -> Draft:
    """The draft among tensors with these original names."""
    draft = [name for name in names if name.startswith(DRAFT_PREFIX)]
    if not draft:
        return Draft("none", None, "the checkpoint has no NextN layer: it has no mtp.* tensors")
    for name in draft:
        if _DSPARK_MODULES.intersection(name.split(".")):
            return Draft("dspark", name, "the draft is DSpark, a different draft model")
    for name in draft:
        if not name.startswith(NEXTN_PREFIX):
            return Draft("several", name, "the draft has more than one NextN layer")
    if _FUSION_NORM not in draft:
        return Draft("foreign", draft[0], f"the mtp.0 block is not a NextN layer: it has no {_FUSION_NORM}")
    return Draft("nextn", _FUSION_NORM, "one NextN layer")


def refuse_other_architectures(tensors: Mapping[str, ShardTensor]) -> None:
    """Raise for tensors of DeepSeek-V4.1, which differs in every layer (spec section 1.6)."""
    for name, tensor in tensors.items():
        if any(part.startswith(("engram", "vision")) for part in name.split(".")):
            raise CheckpointError(
                "the checkpoint is DeepSeek-V4.1 (Engram, vision, shared caches), another architecture; "
                "use a checkpoint of DeepSeek-V4 Flash or Pro",
                file=tensor.file,
                key=name,
            )
