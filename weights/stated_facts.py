"""What a checkpoint states and opening it does not confirm: routing tables, and how weights are stored."""

from __future__ import annotations

from collections import Counter

import torch

from nextn.graphs.config import read_json_object
from nextn.weights.assemble import load_weights
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.encoded_tensors import FLOAT_DTYPES
from nextn.weights.packed import iterate_packed_weights


def check_expert_tables(checkpoint: Checkpoint) -> None:
    """Reads the routing tables of hash-routed layers, small beside the other weights.

    Raises:
        CheckpointError: a table names an expert that does not exist, or cannot be read.
    """
    for weight in iterate_packed_weights(checkpoint.config, with_nextn=False):
        if weight.role == "index":
            load_weights(checkpoint, [weight], torch.float32)


def stated_form_warning(checkpoint: Checkpoint) -> str | None:
    """A warning if `config.json` states a quantisation that no tensor has: tensors decide, not the config."""
    file = checkpoint.folder / "config.json"
    stated = read_json_object(file).get("quantization_config")
    method = stated.get("quant_method") if isinstance(stated, dict) else None
    tensors = checkpoint.tensors.values()
    if method is None or any(tensor.encoding != "plain" for tensor in tensors):
        return None
    stored = Counter(tensor.data.dtype for tensor in tensors if tensor.data.dtype in FLOAT_DTYPES)
    dtype = str(FLOAT_DTYPES[stored.most_common(1)[0][0]]).removeprefix("torch.")
    return (
        f"{file}: quantization_config says {str(method)[:80]}, but the tensors are {dtype}: taken as stored"
    )
