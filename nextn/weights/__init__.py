"""Checkpoints: open, validate, map to original names, assemble and pack."""

from nextn.weights.checkpoint import Checkpoint
from nextn.weights.pack import load_packed, pack_weights, read_packed_header
from nextn.weights.packed import PackedWeight, packed_weights
from nextn.weights.tensor_reader import load_weights

__all__ = [
    "Checkpoint",
    "PackedWeight",
    "load_packed",
    "load_weights",
    "pack_weights",
    "packed_weights",
    "read_packed_header",
]
