"""`ModelConfig`: the architecture of a model, in one frozen dataclass.

`nextn.weights.config_json` reads it from a checkpoint's `config.json`. The symbols of its fields are in
docs/mathematics.md, "Notation".
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nextn.runtime.contract.blocks import MAX_EOS
from nextn.runtime.contract.errors import ArtifactError
from nextn.runtime.contract.strict_json import DecodeFault, decode

LARGEST_INTEGER = 2**31 - 1
"""Bound on every integer of a config: larger ones are corruption, and would make sizes meaningless."""

LARGEST_COUNTS: Mapping[str, int] = {
    "num_hidden_layers": 1024,
    "num_hash_layers": 1024,
    "n_routed_experts": 8192,
    "n_shared_experts": 64,
    "num_experts_per_tok": 512,
    "num_attention_heads": 4096,
    "head_dim": 65536,
    "index_head_dim": 65536,
    "o_groups": 4096,
    "index_n_heads": 4096,
    "num_nextn_predict_layers": 64,
    "hc_mult": 8,
    "hc_sinkhorn_iters": 1000,
}
"""Bounds on the integers that count tensors, graph nodes or passes, so that no config can make a loop without
end, and on widths of tables that planning computes. The releases have at most 61 layers, 384 experts (6
chosen, 1 shared), 128 heads of 512, 16 groups, 64 index heads of 128, 4 streams and 20 passes; the CPU kernel
of the mixing matrices holds 8 streams."""

LARGEST_EXPERTS = 128 * 1024
"""Bound on the routed experts of all layers: each has three matrices, which planning and opening go through
one by one. The largest release has 23 424."""

LARGEST_SCHEDULE = 2 * LARGEST_COUNTS["num_hidden_layers"]
"""Bound on entries of an array with one entry per layer, draft layers included."""

SMALLEST_THETA, LARGEST_THETA = 2, 1e12
"""Bounds on a rotary base. YaRN divides by its logarithm, so that a base near 1 has no table."""

RATIOS = (0, 4, 128)
"""The compression ratios that a layer may have."""

_MAY_BE_ZERO = ("num_hash_layers", "num_nextn_predict_layers")


class InvalidConfig(ValueError):
    """A field whose value is out of range or contradicts another field."""

    def __init__(self, key: str, expected: object, found: object) -> None:
        super().__init__(f"{key}: expected {expected}, found {found}")
        self.key = key
        self.expected = expected
        self.found = found


@dataclass(frozen=True)
class RopeScaling:
    """YaRN parameters of the compressed layers' rotary table (docs/mathematics.md, "RoPE and YaRN")."""

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class ModelConfig:
    """DeepSeek-V4 architecture. Field units are elements unless the name says otherwise.

    Raises `InvalidConfig` for values out of range.
    """

    vocab_size: int
    hidden_size: int
    compress_ratios: tuple[int, ...]
    """One of 0, 4, 128 per Target layer; the NextN layer is always ratio 0."""
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    num_hash_layers: int
    routed_scaling_factor: float
    norm_topk_prob: bool
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    num_nextn_predict_layers: int

    def __post_init__(self) -> None:
        for key, expected, found in (*_out_of_range(self), *_contradictions(self)):
            raise InvalidConfig(key, expected, found)

    @property
    def num_layers(self) -> int:
        return len(self.compress_ratios)

    @property
    def stream_width(self) -> int:
        """Width of the flattened hyper-connection streams, `hc_mult * hidden_size`."""
        return self.hc_mult * self.hidden_size

    def to_dict(self) -> dict[str, object]:
        """JSON values under the field names, as a manifest keeps them and `from_dict` reads them."""
        values = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    def sha256(self) -> str:
        """Hex digest of the canonical JSON text: equal for all spellings of one architecture."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def from_dict(cls, raw: Mapping[str, object], file: object = None) -> ModelConfig:
        """The inverse of `to_dict`.

        Raises:
            ArtifactError: a value is missing, unknown, ill-typed or invalid; names `file` and the key.
        """
        try:
            return decode(cls, dict(raw))
        except (DecodeFault, InvalidConfig) as fault:
            raise ArtifactError(
                "unusable config value",
                file=file,
                key=fault.key,
                expected=fault.expected,
                found=str(fault.found)[:80],
            ) from fault


Fault = tuple[str, object, object]
"""A key, the values expected there, and the value found."""


def _out_of_range(config: ModelConfig) -> Iterator[Fault]:
    for field in dataclasses.fields(config):
        key, value = field.name, getattr(config, field.name)
        if field.type == "int":
            low = 0 if key in _MAY_BE_ZERO else 1
            high = LARGEST_COUNTS.get(key, LARGEST_INTEGER)
            if not low <= value <= high:
                yield key, f"an integer in [{low}, {high}]", value
        elif field.type == "float" and not 0 < value < math.inf:
            yield key, "a finite number above 0", value
    for key in ("rope_theta", "compress_rope_theta"):
        if not SMALLEST_THETA <= getattr(config, key) <= LARGEST_THETA:
            yield key, f"a number in [{SMALLEST_THETA}, {LARGEST_THETA:g}]", getattr(config, key)
    if not 1 <= config.num_layers <= LARGEST_COUNTS["num_hidden_layers"]:
        yield "compress_ratios", f"1..{LARGEST_COUNTS['num_hidden_layers']} entries", config.num_layers
    for layer, ratio in enumerate(config.compress_ratios):
        if ratio not in RATIOS:
            yield f"compress_ratios[{layer}]", "0, 4 or 128", ratio
    if config.bos_token_id is not None and not 0 <= config.bos_token_id < config.vocab_size:
        yield "bos_token_id", f"an integer in [0, {config.vocab_size - 1}]", config.bos_token_id
    if len(config.eos_token_ids) > MAX_EOS or any(token < 0 for token in config.eos_token_ids):
        yield "eos_token_ids", f"at most {MAX_EOS} EOS ids, none below 0", list(config.eos_token_ids)
    scaling = config.rope_scaling
    if scaling is not None and not scaling.beta_fast > scaling.beta_slow > 0:
        yield "rope_scaling.beta_fast", f"more than beta_slow {scaling.beta_slow}", scaling.beta_fast
    if scaling is not None and not (scaling.factor >= 1 and scaling.original_max_position >= 1):
        yield "rope_scaling", "a factor and an original_max_position of at least 1", scaling


def _contradictions(config: ModelConfig) -> Iterator[Fault]:
    if config.num_attention_heads % config.o_groups:
        yield "o_groups", f"a divisor of {config.num_attention_heads} heads", config.o_groups
    if config.qk_rope_head_dim % 2 or config.qk_rope_head_dim > config.head_dim:
        expected = f"an even number up to head_dim {config.head_dim}"
        yield "qk_rope_head_dim", expected, config.qk_rope_head_dim
    if config.index_head_dim < config.qk_rope_head_dim:
        yield "index_head_dim", f"at least {config.qk_rope_head_dim}", config.index_head_dim
    if config.num_experts_per_tok > config.n_routed_experts:
        expected = f"at most {config.n_routed_experts} experts"
        yield "num_experts_per_tok", expected, config.num_experts_per_tok
    if config.num_layers * config.n_routed_experts > LARGEST_EXPERTS:
        expected = f"at most {LARGEST_EXPERTS} in all of the {config.num_layers} layers"
        yield "n_routed_experts", expected, config.n_routed_experts
    if config.num_hash_layers > config.num_layers:
        yield "num_hash_layers", f"at most {config.num_layers} layers", config.num_hash_layers
