"""Which draft a checkpoint carries: its tensors tell, `config.json` does not (spec section 1.6)."""

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

# What makes an MTP block the NextN layer of DeepSeek-V4: it norms the embedding before fusing it.
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
"""What NextN is computed from: one score-routed layer of ratio 0, with neither YaRN nor an indexer."""

_DAMAGED = "the NextN layer is damaged"

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
    fault: CheckpointError | None = None
    """Of a damaged one."""

    def require_nextn(self, folder: Path) -> None:
        """Raise unless the draft is a NextN layer; the sentence says what was found and what to use."""
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
        unread: what to say of a file with others, see `Shards`.
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
    """A draft that cannot be read, which plain decoding need not care about."""
    return Draft("damaged", fault.key, f"{_DAMAGED}: {fault}", fault)


def refuse_other_config(target: ModelConfig, folder: Path) -> None:
    """Raise if the `config.json` of a draft folder is unusable or gives NextN other values than the Target's.

    Graphs compute NextN with the Target's. A folder without a config holds tensors alone, whose shapes are
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
    """Raise for tensors of DeepSeek-V4.1, which differs in every layer (spec section 1.6)."""
    for name, tensor in tensors.items():
        if any(part.startswith(("engram", "vision")) for part in name.split(".")):
            raise CheckpointError(
                "the checkpoint is DeepSeek-V4.1 (Engram, vision, shared caches), another architecture; "
                "use a checkpoint of DeepSeek-V4 Flash or Pro",
                file=tensor.file,
                key=name,
            )
