"""What a decoded manifest must satisfy beyond the types of its values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nextn.runtime.contract.blocks import MAX_EOS, MAX_STEPS, MAX_WINDOW_ROWS
from nextn.runtime.contract.graph_spec import DTYPE_BYTES, GRAPH_NAMES, TensorKind
from nextn.runtime.contract.strict_json import DecodeFault

if TYPE_CHECKING:
    from nextn.runtime.contract.manifest import Blocks, FileRecord, GraphRecord, Manifest

SHA256 = re.compile(r"[0-9a-f]{64}")

CODE_LAYOUTS = ("fp8_block", "mxfp4", "int8_row")

EMITS = {"cpu": ("aoti", "onnx"), "cuda": ("pt2",), "npu": ("pt2", "air", "om")}
"""The forms that a device's graphs may have: AOTInductor libraries, exported programs to capture in process,
GE IR, what CANN's compiler makes of it, ONNX."""

REQUIREMENTS = ("libtorch", "libnextn_ops", "libascendcl", "torch", "torch_npu", "onnxruntime")
"""What graphs may need to be replayed; whoever runs a graph format provides for some of them."""

_TENSOR_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_FILE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")

_Form = tuple[str, tuple[int, ...]]
"""dtype and shape"""

_Declared = dict[TensorKind, dict[str, _Form]]


def check_manifest(manifest: Manifest, layouts: Blocks) -> None:
    """Raises DecodeFault for a value out of range, a repeated name, or parts that contradict each other.

    Args:
        layouts: the control and result layouts this build reads and writes.
    """
    _check_scalars(manifest)
    for name in ("control", "result"):
        _equal(f"blocks.{name}", getattr(manifest.blocks, name), getattr(layouts, name))
    lookup = _check_tables(manifest)
    for graph in manifest.graphs:
        _check_graph(graph, manifest.limits.slots, lookup)
        _check_returns(graph, manifest.target.emit)
    _check_files(manifest)


def _check_scalars(manifest: Manifest) -> None:
    limits, speculation = manifest.limits, manifest.speculation
    model, target = manifest.model, manifest.target
    _in_range("speculation.num_steps", speculation.num_steps, 0, MAX_STEPS)
    _equal("speculation.num_draft_tokens", speculation.num_draft_tokens, speculation.num_steps + 1)
    _in_range("limits.max_seq_len", limits.max_seq_len, 2, 2**31 - 1)
    _in_range("limits.prefill_chunk", limits.prefill_chunk, 1, 2**31 - 1)
    sizes = limits.batch_sizes
    if not sizes or sizes[0] < 1 or any(a >= b for a, b in zip(sizes, sizes[1:], strict=False)):
        raise DecodeFault("limits.batch_sizes", "ascending sizes of at least 1", list(sizes))
    _equal("limits.slots", limits.slots, sizes[-1])
    _equal("limits.max_window_rows", limits.max_window_rows, MAX_WINDOW_ROWS)
    _in_range("model.vocab_size", model.vocab_size, 1, 2**31 - 1)
    _in_range("model.eos_token_ids: count", len(model.eos_token_ids), 0, MAX_EOS)
    for index, token in enumerate(model.eos_token_ids):
        _in_range(f"model.eos_token_ids[{index}]", token, 0, model.vocab_size - 1)
    if target.emit not in EMITS[target.device]:
        raise DecodeFault("target.emit", " or ".join(EMITS[target.device]), target.emit)
    _unique("requires", manifest.requires)
    for name in manifest.requires:
        if name not in REQUIREMENTS:
            raise DecodeFault("requires", f"{', '.join(REQUIREMENTS)}; a newer nextn knows more", name)
    _equal("target.world_size", target.world_size, 1)
    _equal("target.rank", target.rank, 0)


def _check_tables(manifest: Manifest) -> _Declared:
    """Tables with unique names and positive shapes; returns what each kind declares, by name."""
    slots = manifest.limits.slots
    tables: dict[TensorKind, tuple[str, list[tuple[str, _Form]]]] = {
        "weight": (
            "weights.tensors",
            [(w.name, (w.storage.dtype, w.storage.shape)) for w in manifest.weights.tensors],
        ),
        "state": ("state", [(s.name, (s.dtype, s.shape(slots))) for s in manifest.state]),
        "input": ("inputs", [(i.name, (i.dtype, i.shape)) for i in manifest.inputs]),
    }
    for key, rows in tables.values():
        _unique(key, (name for name, _ in rows))
        for name, form in rows:
            _tensor(f"{key}[{name}]", name, form)
    _check_scales(manifest)
    _unique("graphs", (graph.spec.key for graph in manifest.graphs))
    return {kind: dict(rows) for kind, (_, rows) in tables.items()}


def _check_scales(manifest: Manifest) -> None:
    """Codes have scales among the weights; plain weights have none."""
    names = {weight.name for weight in manifest.weights.tensors}
    for weight in manifest.weights.tensors:
        key = f"weights.tensors[{weight.name}].scales"
        if weight.storage.layout in CODE_LAYOUTS and weight.scales not in names:
            raise DecodeFault(key, "a tensor of the weights file", weight.scales)
        if weight.storage.layout == "plain" and weight.scales is not None:
            raise DecodeFault(key, "null for a plain weight", weight.scales)


def _check_graph(graph: GraphRecord, slots: int, declared: _Declared) -> None:
    """A known graph, each of whose tensors is one its table declares."""
    key = f"graphs[{graph.spec.key}]"
    if graph.name not in GRAPH_NAMES:
        raise DecodeFault(f"{key}.name", " or ".join(GRAPH_NAMES), graph.name)
    _in_range(f"{key}.batch", graph.batch, 1, slots)
    _in_range(f"{key}.rows", graph.rows, 1, 2**31 - 1)
    _unique(f"{key}.tensors", (tensor.name for tensor in graph.tensors))
    for tensor in graph.tensors:
        expected = declared[tensor.kind].get(tensor.name)
        found = (tensor.dtype, tensor.shape)
        if found != expected:
            what = f"a declared {tensor.kind}"
            raise DecodeFault(
                f"{key}.tensors[{tensor.name}]",
                what if expected is None else f"{what}, {_form_text(expected)}",
                _form_text(found),
            )


def _check_returns(graph: GraphRecord, emit: str) -> None:
    """Graphs of Ascend's graph engine return a block that they bind; no other graph returns anything."""
    key = f"graphs[{graph.spec.key}].returns"
    if emit not in ("air", "om"):
        if graph.returns is not None:
            raise DecodeFault(key, f"null for {emit}", graph.returns)
    elif graph.returns not in {tensor.name for tensor in graph.tensors if tensor.kind == "state"}:
        raise DecodeFault(key, "a block that the graph writes", graph.returns)


def _check_files(manifest: Manifest) -> None:
    weights = manifest.weights
    records: list[GraphRecord | FileRecord] = [*manifest.graphs, manifest.golden, *manifest.tokenizer]
    files = [weights.file, *(record.file for record in records)]
    _unique("file", ["manifest.json", *files])
    for file in files:
        if not all(_FILE_PART.fullmatch(part) for part in file.split("/")):
            raise DecodeFault("file", "a plain relative path inside the artifact", file)
    for record in records:
        _in_range(f"{record.file}: bytes", record.bytes, 1, 2**63 - 1)
        _hash(f"{record.file}: sha256", record.sha256)
    _in_range("weights.header_bytes", weights.header_bytes, 8, weights.bytes)
    _hash("weights.header_sha256", weights.header_sha256)
    _hash("weights.body_sha256", weights.body_sha256)
    _hash("model.sha256", manifest.model.sha256)
    _hash("producer.sources_sha256", manifest.producer.sources_sha256)


def _form_text(form: _Form) -> str:
    return f"{form[0]} {list(form[1])}"


def _tensor(key: str, name: str, form: _Form) -> None:
    dtype, shape = form
    if not _TENSOR_NAME.fullmatch(name):
        raise DecodeFault(key, "dotted letters, digits and _", name)
    if dtype not in DTYPE_BYTES:
        raise DecodeFault(f"{key}.dtype", " or ".join(DTYPE_BYTES), dtype)
    if any(not 1 <= size < 2**40 for size in shape):
        raise DecodeFault(f"{key}.shape", "sizes of at least 1", list(shape))


def _in_range(key: str, found: int, low: int, high: int) -> None:
    if not low <= found <= high:
        raise DecodeFault(key, f"{low}..{high}", found)


def _equal(key: str, found: object, expected: object) -> None:
    if found != expected:
        raise DecodeFault(key, expected, found)


def _hash(key: str, found: str) -> None:
    if not SHA256.fullmatch(found):
        raise DecodeFault(key, "64 lower-case hex digits", found)


def _unique(key: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DecodeFault(key, "each name once", name)
        seen.add(name)
