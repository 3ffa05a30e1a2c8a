"""`manifest.json`: everything a host must know to check, bind and replay an artifact.

The dataclasses mirror the file key for key. `parse_manifest` is the only way in and refuses whatever
it cannot vouch for; `to_json` is the only way out and seals the text with its own hash.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nextn.runtime.contract.blocks import Control, Result, field_offsets
from nextn.runtime.contract.errors import ArtifactError
from nextn.runtime.contract.graph_spec import GraphSpec, StateSpec, TensorSpec
from nextn.runtime.contract.manifest_checks import SHA256, check_manifest
from nextn.runtime.contract.strict_json import DecodeFault, decode, parse_unique

FORMAT_VERSION = "2.0"
"""`major.minor`. A reader refuses a newer major and ignores unknown keys of a newer minor."""

MANIFEST_FILE = "manifest.json"

ComputeDtype = Literal["float32", "bfloat16"]
Device = Literal["cpu", "cuda", "npu"]
Emit = Literal["aoti", "pt2", "air", "om", "onnx"]
ReturnedBlock = Literal["result", "control"]

_UNSEALED = "0" * 64


@dataclass(frozen=True)
class Producer:
    """What made the artifact. `sources_sha256` covers the Python sources that shape the graphs."""

    nextn: str
    torch: str
    compiler: str
    sources_sha256: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """Where the graphs run, and the form of their files.

    `isa` lists the CPU features they need, by lower-case cpuid name. The inputs of an `air` graph are its
    tensors in the order of the manifest, and so are those of a `pt2` program. `soc` is the chip whose limits
    on captured graphs were kept, or that `om` graphs were compiled for, null if none was named.
    """

    device: Device
    emit: Emit
    dtype: ComputeDtype
    isa: tuple[str, ...]
    soc: str | None
    world_size: int
    rank: int


@dataclass(frozen=True)
class ModelRecord:
    """The canonical `ModelConfig` and its hash."""

    config: dict[str, Any]
    sha256: str
    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Speculation:
    """`num_steps` is k, `num_draft_tokens` the window k + 1; k = 0 means no NextN graphs."""

    num_steps: int
    num_draft_tokens: int


@dataclass(frozen=True)
class Limits:
    """`max_seq_len` and `prefill_chunk` in tokens; `slots` without the scratch slot."""

    max_seq_len: int
    prefill_chunk: int
    batch_sizes: tuple[int, ...]
    slots: int
    max_window_rows: int


@dataclass(frozen=True)
class InputSpec:
    """A tensor the host writes before a launch; one copy, shared by every graph that names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class BlockLayout:
    """Row width and `{field: (offset, length)}` of a block, in int64 columns."""

    width: int
    fields: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Blocks:
    """Layouts of the control and the result block."""

    control: BlockLayout
    result: BlockLayout


@dataclass(frozen=True)
class GraphRecord:
    """One compiled graph: its contract and the file that implements it (`bytes` is the file size).

    `returns` is the block whose rows are the only output of an `air` or `om` graph; null for other forms.
    """

    name: str
    batch: int
    rows: int
    file: str
    sha256: str
    bytes: int
    tensors: tuple[TensorSpec, ...]
    returns: ReturnedBlock | None = None

    @property
    def spec(self) -> GraphSpec:
        return GraphSpec(self.name, self.batch, self.rows, self.tensors)


@dataclass(frozen=True)
class WeightStorage:
    """How a weight lies in the weights file.

    `fp8_block`, `mxfp4` and `int8_row` are codes as checkpoints store them, with one scale for 128 x 128
    values, for 32 neighbouring columns (two to a byte, low nibble first) and for a row; the weight's
    `scales` names the tensor that holds them.
    """

    layout: Literal["plain", "fp8_block", "mxfp4", "int8_row", "p32", "int8_p32", "mxfp4_p32", "nz"]
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WeightRecord:
    """One packed weight: logical dtype and shape, how and where it is stored, and what it was made from.

    `source` is `(file, tensor, SHA-256 of its bytes)` of each checkpoint tensor, none for a derived constant;
    files of a separate draft checkpoint are under `draft/`. `offset` counts from the start of the weights
    file; `sha256` is of the stored bytes.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    storage: WeightStorage
    scales: str | None
    source: tuple[tuple[str, str, str], ...]
    offset: int
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class WeightsFile:
    """The weights file. `header_bytes` = 8 + length of its JSON header; the body is all that follows."""

    file: str
    bytes: int
    header_bytes: int
    header_sha256: str
    body_sha256: str
    tensors: tuple[WeightRecord, ...]


@dataclass(frozen=True)
class FileRecord:
    """A further file of the artifact and its size in bytes."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The whole file, in key order.

    `requires` lists the libraries that replay needs, of `REQUIREMENTS`; `ops` informs which fused ops were
    taken for each op, and nothing decides by it.
    """

    format_version: str
    manifest_sha256: str
    producer: Producer
    target: Target
    model: ModelRecord
    speculation: Speculation
    limits: Limits
    state: tuple[StateSpec, ...]
    inputs: tuple[InputSpec, ...]
    blocks: Blocks
    requires: tuple[str, ...]
    ops: dict[str, str]
    graphs: tuple[GraphRecord, ...]
    weights: WeightsFile
    golden: FileRecord
    tokenizer: tuple[FileRecord, ...]


def block_layouts() -> Blocks:
    """The layouts this build writes and reads."""
    return Blocks(*(_layout(block, block.WIDTH) for block in (Control, Result)))


def to_json(manifest: Manifest) -> str:
    """The sealed text: `manifest_sha256` is recomputed whatever the dataclass holds."""
    unsealed = asdict(manifest) | {"manifest_sha256": _UNSEALED}
    text = json.dumps(unsealed, indent=1) + "\n"
    return text.replace(_UNSEALED, hashlib.sha256(text.encode()).hexdigest(), 1)


def unsealed_sha256(text: str, recorded: str) -> str:
    """SHA-256 of manifest text with the `recorded` self-hash replaced by zeros."""
    return hashlib.sha256(text.replace(recorded, _UNSEALED, 1).encode()).hexdigest()


def parse_manifest(text: str, file: object) -> Manifest:
    """Reads manifest text; `file` only names it in messages.

    Raises ArtifactError with file, key, expected and found for anything but a sealed, complete,
    self-consistent manifest this build can replay.
    """
    try:
        raw = parse_unique(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError("manifest is not JSON", file=file, found=error) from error
    try:
        if not isinstance(raw, dict):
            raise DecodeFault("", "an object", raw)
        newer_minor = _check_format_version(raw, file)
        _check_seal(text, raw.get("manifest_sha256"))
        manifest = decode(Manifest, raw, ignore_unknown=newer_minor)
        check_manifest(manifest, block_layouts())
    except DecodeFault as fault:
        raise ArtifactError(
            "manifest refused", file=file, key=fault.key or None, expected=fault.expected, found=fault.found
        ) from fault
    return manifest


def _layout(block: type, width: int) -> BlockLayout:
    return BlockLayout(width, {name: (span[0], span[1]) for name, span in field_offsets(block).items()})


def _check_format_version(raw: Mapping[str, object], file: object) -> bool:
    """Returns whether the file has a newer minor version than this build.

    Raises ArtifactError, with the command that rebuilds the artifact, for another major version.
    """
    found = raw.get("format_version")
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", found) if isinstance(found, str) else None
    ours_major, ours_minor = (int(part) for part in FORMAT_VERSION.split("."))
    if match is None:
        raise DecodeFault("format_version", f"{ours_major}.x", found)
    if int(match[1]) != ours_major:
        raise ArtifactError(
            f"artifact of another format; compile it again: {_rebuild_command(raw)}",
            file=file,
            key="format_version",
            expected=f"{ours_major}.x",
            found=found,
        )
    return int(match[2]) > ours_minor


def _rebuild_command(raw: Mapping[str, object]) -> str:
    """The command that wrote an artifact, as far as it can be read, with `--force`."""
    producer = raw.get("producer")
    command = producer.get("command") if isinstance(producer, dict) else None
    words = command if isinstance(command, list) and all(isinstance(word, str) for word in command) else []
    return shlex.join([*(words or ["nextn-compile", "CHECKPOINT", "-o", "ARTIFACT"]), "--force"])


def _check_seal(text: str, recorded: object) -> None:
    if not isinstance(recorded, str) or not SHA256.fullmatch(recorded):
        raise DecodeFault("manifest_sha256", "64 lower-case hex digits", recorded)
    actual = unsealed_sha256(text, recorded)
    if actual != recorded:
        raise DecodeFault("manifest_sha256", recorded, actual)
