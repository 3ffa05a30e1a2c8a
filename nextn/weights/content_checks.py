"""Checks of a checkpoint that opening it leaves out.

`check_expert_tables` reads the routing tables and `find_not_finite` every value; `stated_layout_warning`
compares the quantisation named by `config.json` and the description of an export with that of the tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from nextn.weights.checkpoint import Checkpoint
from nextn.weights.dequantise import FP8_BLOCK, Encoding
from nextn.weights.encoded_tensors import FLOAT_DTYPES
from nextn.weights.json_fields import read_json_object
from nextn.weights.packed import iterate_packed_weights
from nextn.weights.quantisation_metadata import DESCRIPTION_FILE
from nextn.weights.tensor_reader import ScaleNotFinite, TensorReader, load_weights

_ENCODINGS_OF_METHOD: Mapping[str, frozenset[Encoding]] = {
    "fp8": frozenset({"fp8_block", "mxfp4"}),
    "compressed-tensors": frozenset({"int8_row"}),
}
_ENCODING_OF_EXPERTS: Mapping[str, Encoding] = {"fp4": "mxfp4", "fp8": "fp8_block", "int8": "int8_row"}
_INT8_EXPORTS = ("W8A8", "W8A8_DYNAMIC")
_E4M3 = ("e4m3", "e4m3fn", "float8_e4m3fn")


def check_expert_tables(checkpoint: Checkpoint) -> None:
    """Reads the routing tables of hash-routed layers, small beside the other weights.

    Raises:
        CheckpointError: a table names an expert that does not exist, or cannot be read.
    """
    for weight in iterate_packed_weights(checkpoint.config, with_nextn=False):
        if weight.role == "index":
            load_weights(checkpoint, [weight], torch.float32)


@dataclass(frozen=True)
class NotFinite:
    """A tensor with values that are not finite."""

    file: str
    tensor: str
    nan: int
    inf: int


def find_not_finite(
    checkpoint: Checkpoint, progress: Callable[[str, int, int], None] | None = None
) -> Iterator[NotFinite]:
    """Reads and dequantises everything once; yields the tensors with values that are not finite.

    Raises:
        CheckpointError: a file cannot be read, or a quantisation is asymmetric.
    """
    total = sum(tensor.data.nbytes for tensor in checkpoint.tensors.values())
    done = 0
    for name, tensor in checkpoint.tensors.items():
        is_index = tensor.data.dtype.startswith("I") and tensor.encoding == "plain"
        nan = inf = 0
        try:
            for piece in TensorReader(tensor, torch.int64 if is_index else torch.float32).pieces():
                if not is_index and not bool(piece.isfinite().all()):
                    nan += int(piece.isnan().sum())
                    inf += int(piece.isinf().sum())
        except ScaleNotFinite as fault:
            # Without a scale there are no values; the other tensors can still be read.
            yield NotFinite(str(fault.file), str(fault.key), fault.nan, fault.inf)
        done += tensor.data.nbytes
        if progress is not None:
            progress(name, done, total)
        if nan or inf:
            yield NotFinite(str(tensor.data.file), tensor.data.name, nan, inf)


def stated_layout_warning(checkpoint: Checkpoint) -> str | None:
    """A warning if `config.json` or the description of an export contradicts the layout of the tensors.

    The tensors decide.
    """
    config = read_json_object(checkpoint.folder / "config.json")
    found = {tensor.encoding for tensor in checkpoint.tensors.values()}
    contradictions = []
    if said := ", ".join(_of_config(config, checkpoint, found)):
        contradictions.append(f"config.json says {said}")
    description = checkpoint.folder / DESCRIPTION_FILE
    if description.exists():
        contradictions += _of_description(read_json_object(description), checkpoint, found)
    if not contradictions:
        return None
    all_said = "; ".join(contradictions)
    return (
        f"{checkpoint.folder}: {all_said}, but the tensors are {_stored_layout(checkpoint)}: taken as stored"
    )


def _of_config(config: Mapping[str, object], checkpoint: Checkpoint, found: set[Encoding]) -> Iterator[str]:
    stated = config.get("quantization_config")
    declared = stated if isinstance(stated, dict) else {}
    method = declared.get("quant_method")
    if method is not None and not _ENCODINGS_OF_METHOD.get(str(method), frozenset()) & found:
        yield f"quant_method {_shown(method)}"
    if "fp8_block" in found:
        code = declared.get("fmt")
        if code is not None and str(code).lower() not in _E4M3:
            yield f"fmt {_shown(code)}"
        block = declared.get("weight_block_size")
        if block is not None and block != [FP8_BLOCK, FP8_BLOCK]:
            yield f"weight_block_size {_shown(block)}"
    experts = config.get("expert_dtype") or declared.get("expert_dtype")
    if experts is not None:
        stored = {tensor.encoding for name, tensor in checkpoint.tensors.items() if ".experts." in name}
        if _ENCODING_OF_EXPERTS.get(str(experts), "plain") not in stored:
            yield f"expert_dtype {_shown(experts)}"


def _of_description(
    description: Mapping[str, object], checkpoint: Checkpoint, found: set[Encoding]
) -> Iterator[str]:
    kind = description.get("model_quant_type")
    is_true = "int8_row" in found if kind in _INT8_EXPORTS else kind == "FLOAT" and found == {"plain"}
    if kind is not None and not is_true:
        yield f"{DESCRIPTION_FILE} says model_quant_type {_shown(kind)}"
    absent = checkpoint.described_but_absent
    if absent:
        yield f"{DESCRIPTION_FILE} describes {len(absent)} tensors that do not exist, first {absent[0]}"


def _stored_layout(checkpoint: Checkpoint) -> str:
    """The quantised layouts, or the dtype that most tensors have."""
    if any(tensor.encoding != "plain" for tensor in checkpoint.tensors.values()):
        return checkpoint.layout.storage
    dtypes = (tensor.data.dtype for tensor in checkpoint.tensors.values())
    stored = Counter(dtype for dtype in dtypes if dtype in FLOAT_DTYPES)
    return str(FLOAT_DTYPES[stored.most_common(1)[0][0]]).removeprefix("torch.")


def _shown(value: object) -> str:
    return str(value)[:80]
