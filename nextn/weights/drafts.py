"""The draft that a checkpoint holds, which its tensors show and `config.json` does not.

Source: docs/design.md, "Which draft a checkpoint holds".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nextn.graphs.config import ModelConfig
from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.config_json import read_model_config
from nextn.weights.packed import NEXTN_PREFIX
from nextn.weights.shards import ShardTensor

DraftKind = Literal["nextn", "none", "dspark", "several", "foreign", "damaged"]

_DSPARK_MODULES = frozenset({"main_proj", "main_norm", "markov_head", "confidence_head"})

# Only the NextN layer of DeepSeek-V4 norms the embedding before fusing it; other MTP blocks lack this tensor.
_FUSION_NORM = f"{NEXTN_PREFIX}enorm.weight"

_NEXTN_FIELDS = (
    "vocab_size",
    "hidden_size",
    "hc_mult",
    "hc_sinkhorn_iters",
    "hc_eps",
    "rms_norm_eps",
    "num_attention_heads",
    "head_dim",
    "qk_rope_head_dim",
    "rope_theta",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "sliding_window",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "norm_topk_prob",
    "swiglu_limit",
)
"""The fields that NextN depends on: one score-routed layer of ratio 0, with neither YaRN nor an indexer."""

_DAMAGED = "the NextN layer is damaged"

_INSTEAD = (
    "use --speculative-num-steps 0 for plain decoding, or --speculative-draft-model-path with a folder that "
    "holds the mtp.0 tensors of DeepSeek-V4"
)


@dataclass(frozen=True)
class Draft:
    """The kind of draft, a tensor that shows the kind, and a sentence for the error when it cannot draft."""

    kind: DraftKind
    evidence: str | None
    found: str
    fault: CheckpointError | None = None
    """Set for a damaged draft."""

    def require_nextn(self, folder: Path) -> None:
        """Raise unless the draft is a NextN layer; the error names the draft and the flags to use."""
        if self.fault is not None:
            raise CheckpointError(
                f"{_DAMAGED}: {self.fault.message}; {_INSTEAD}",
                file=self.fault.file,
                key=self.fault.key,
                expected=self.fault.expected,
                found=self.fault.found,
            )
        if self.kind != "nextn":
            raise CheckpointError(
                f"{self.found}; {_INSTEAD}",
                file=folder,
                key=self.evidence or "mtp.0",
                expected="one NextN layer, mtp.0",
                found="none" if self.kind == "none" else self.evidence,
            )


def classify_draft(names: Iterable[str], unread: str | None = None) -> Draft:
    """The draft whose tensors have these original names.

    Args:
        names: of the tensors that were read.
        unread: a sentence about a file with tensors that were not read, see `Shards.unread_draft`.
    """
    draft = list(names)
    if not draft and unread is not None:
        return Draft("none", None, f"no NextN layer was found, and {unread}")
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


def damaged_draft(fault: CheckpointError) -> Draft:
    """A draft that cannot be read; plain decoding works without it."""
    return Draft("damaged", fault.key, f"{_DAMAGED}: {fault}", fault)


def refuse_other_config(target: ModelConfig, folder: Path) -> None:
    """Raise if the `config.json` of a draft folder is unusable or gives NextN other values than the Target's.

    Graphs compute NextN with the Target's values. Of a folder without a config only the tensor shapes are
    compared.
    """
    file = folder / "config.json"
    if not os.path.lexists(file):
        return
    draft, _ = read_model_config(file)
    for key in _NEXTN_FIELDS:
        expected, found = getattr(target, key), getattr(draft, key)
        if expected != found:
            raise CheckpointError(
                "the draft was made for another Target",
                file=file,
                key=key,
                expected=f"{expected} as in the checkpoint's config.json",
                found=found,
            )


def refuse_other_architectures(tensors: Mapping[str, ShardTensor]) -> None:
    """Raise for tensors of DeepSeek-V4.1, which differs in every layer."""
    for name, tensor in tensors.items():
        if any(part.startswith(("engram", "vision")) for part in name.split(".")):
            raise CheckpointError(
                "the checkpoint is DeepSeek-V4.1 (Engram, vision, shared caches), another architecture; "
                "use a checkpoint of DeepSeek-V4 Flash or Pro",
                file=tensor.file,
                key=name,
            )
