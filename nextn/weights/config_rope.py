"""The rotary parameters of a `config.json`: `rope_scaling` (release), `rope_parameters` (Hugging Face)."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.graphs.config import LARGEST_THETA, SMALLEST_THETA, RopeScaling
from nextn.weights.json_fields import FieldReader


@dataclass(frozen=True)
class Rotary:
    """The rotary parameters of a config."""

    dims: int
    theta: float
    compress_theta: float
    scaling: RopeScaling | None


def read_rotary(reader: FieldReader, head_dim: int) -> Rotary:
    """The rotary parameters of a `config.json`; values given in both spellings must agree."""
    scaling_reader = reader.child("rope_scaling")
    scaling = None if scaling_reader is None else _read_scaling(scaling_reader)
    nested = reader.child("rope_parameters")
    if nested is None:
        return _release_rotary(reader, head_dim, reader, scaling)
    main, compress = nested.child("main"), nested.child("compress")
    if main is None and compress is None:
        # transformers 5 before it nests them: the parameters of the compressed layers.
        flat = _read_scaling(nested) if nested.has("rope_type") or nested.has("type") else None
        if scaling_reader is not None and flat != scaling:
            reader.refuse("rope_scaling", "the values of rope_parameters", reader.raw["rope_scaling"])
        return _release_rotary(reader, head_dim, reader if reader.has("rope_theta") else nested, flat)
    if main is None or compress is None:
        nested.refuse("main" if main is None else "compress", "an object", "nothing")
    main.constant("rope_type", "default")
    theta, compress_theta = _read_theta(main, "rope_theta"), _read_theta(compress, "rope_theta")
    for key, value in (("rope_theta", theta), ("compress_rope_theta", compress_theta)):
        if reader.has(key) and reader.positive(key) != value:
            reader.refuse(key, f"{value} as in rope_parameters", reader.raw[key])
    nested_scaling = _read_scaling(compress)
    if scaling_reader is not None and nested_scaling != scaling:
        reader.refuse("rope_scaling", "the values of rope_parameters.compress", reader.raw["rope_scaling"])
    dims = _read_dims(reader, head_dim, [reader, main, compress])
    return Rotary(dims, theta, compress_theta, nested_scaling)


def _release_rotary(
    reader: FieldReader, head_dim: int, plain: FieldReader, scaling: RopeScaling | None
) -> Rotary:
    """The bases where the release has them; that of the uncompressed layers in `plain`."""
    dims = _read_dims(reader, head_dim, [reader])
    return Rotary(dims, _read_theta(plain, "rope_theta"), _read_theta(reader, "compress_rope_theta"), scaling)


def _read_theta(reader: FieldReader, key: str) -> float:
    """A rotary base."""
    return reader.number(key, SMALLEST_THETA, LARGEST_THETA)


def _read_yarn(reader: FieldReader) -> RopeScaling:
    factor = reader.number("factor", 1, 1e6)
    # The ramp that Hugging Face takes where a config has none.
    beta_fast = reader.number("beta_fast", 1e-3, 1e6) if reader.has("beta_fast") else 32.0
    beta_slow = reader.number("beta_slow", 1e-3, 1e6) if reader.has("beta_slow") else 1.0
    if beta_fast <= beta_slow:
        reader.refuse("beta_fast", f"more than beta_slow {beta_slow}", beta_fast)
    return RopeScaling(factor, reader.integer("original_max_position_embeddings"), beta_fast, beta_slow)


def _read_scaling(reader: FieldReader) -> RopeScaling | None:
    """None for plain RoPE. The kind of scaling is under `rope_type`, `type` or, equal, under both."""
    keys = [key for key in ("rope_type", "type") if reader.has(key)]
    if not keys:
        reader.refuse("rope_type", "yarn", "nothing", "missing config value")
    kinds = [reader.value(key, "yarn") for key in keys]
    if any(kind != "default" for kind in kinds):
        for key, kind in zip(keys, kinds, strict=True):
            if kind != "yarn":
                reader.refuse(key, "yarn", kind, "unsupported architecture value")
        # The architecture does not scale cos and sin by YaRN's magnitude factor.
        reader.constant("attention_factor", 1.0)
        return _read_yarn(reader)
    return None


def _read_dims(reader: FieldReader, head_dim: int, sources: list[FieldReader]) -> int:
    """The rotary width, checked against every `partial_rotary_factor` in `sources`."""
    if reader.has("qk_rope_head_dim"):
        dims = reader.integer("qk_rope_head_dim")
    elif reader.has("partial_rotary_factor"):
        dims = round(head_dim * min(reader.positive("partial_rotary_factor"), 1.0))
    else:
        dims = reader.integer("qk_rope_head_dim")
    for source in sources:
        if source.has("partial_rotary_factor"):
            factor = source.positive("partial_rotary_factor")
            if abs(head_dim * factor - dims) >= 0.5:
                source.refuse("partial_rotary_factor", f"{dims}/{head_dim}", factor)
    return dims
