"""The manifest reader: what it gives back, and one refusal per fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from nextn.runtime.contract.blocks import MAX_WINDOW_ROWS
from nextn.runtime.contract.errors import ArtifactError
from nextn.runtime.contract.graph_spec import StateSpec, TensorSpec
from nextn.runtime.contract.manifest import (
    FileRecord,
    GraphRecord,
    InputSpec,
    Limits,
    Manifest,
    ModelRecord,
    Producer,
    Speculation,
    Target,
    WeightRecord,
    WeightsFile,
    WeightStorage,
    block_layouts,
    parse_manifest,
    to_json,
    unsealed_sha256,
)

HASH = "ab" * 32

WEIGHT = WeightRecord(
    name="embed.weight",
    role="matrix",
    dtype="float32",
    shape=(8, 4),
    storage=WeightStorage("plain", "float32", (8, 4)),
    scales=None,
    source=(("model.safetensors", "embed.weight", HASH),),
    offset=64,
    nbytes=128,
    sha256=HASH,
)

MANIFEST = Manifest(
    format_version="2.0",
    manifest_sha256="",
    producer=Producer("0.1.0", "2.13.0", "g++ 12", HASH, ("nextn-compile", "demo")),
    target=Target("cpu", "aoti", "float32", ("avx2",), None, 1, 0),
    model=ModelRecord({"vocab_size": 8}, HASH, 8, None, (1, 2)),
    speculation=Speculation(3, 4),
    limits=Limits(64, 16, (1, 2), 2, MAX_WINDOW_ROWS),
    state=(StateSpec("control", 1, 32, "int64"), StateSpec("window_0", 16, 8, "float32")),
    inputs=(InputSpec("prompt_slot", "int64", (1,)),),
    blocks=block_layouts(),
    requires=("libtorch", "libnextn_ops"),
    ops={"linear": "plain"},
    graphs=(
        GraphRecord(
            "prefill",
            1,
            16,
            "graphs/prefill.b1.so",
            HASH,
            10,
            (
                TensorSpec("embed.weight", "weight", "float32", (8, 4)),
                TensorSpec("window_0", "state", "float32", (48, 8)),
                TensorSpec("prompt_slot", "input", "int64", (1,)),
            ),
        ),
    ),
    weights=WeightsFile("weights.safetensors", 192, 64, HASH, HASH, (WEIGHT,)),
    golden=FileRecord("golden.safetensors", 5, HASH),
    tokenizer=(FileRecord("tokenizer.json", 5, HASH),),
)


def sealed(change: Callable[[dict[str, Any]], None]) -> str:
    """The text of `MANIFEST` after `change`, with a valid seal."""
    raw = json.loads(to_json(MANIFEST))
    change(raw)
    raw["manifest_sha256"] = "0" * 64
    text = json.dumps(raw)
    return text.replace("0" * 64, unsealed_sha256(text, "0" * 64), 1)


def assign(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    """Sets the value at a dotted path; numbers index arrays."""
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("/"))

    def change(raw: Any) -> None:
        for parent in parents:
            raw = raw[parent]
        raw[last] = value

    return change


def test_round_trip() -> None:
    text = to_json(MANIFEST)
    parsed = parse_manifest(text, "manifest.json")
    assert to_json(parsed) == text
    assert parsed.graphs == MANIFEST.graphs
    assert parsed.weights == MANIFEST.weights
    assert parsed.limits.batch_sizes == (1, 2)
    assert unsealed_sha256(text, parsed.manifest_sha256) == parsed.manifest_sha256


def test_the_seal_covers_every_byte() -> None:
    text = to_json(MANIFEST)
    for changed in (text.replace('"linear"', '"Linear"'), text + " ", text.replace("1.0", "1.1", 1)):
        with pytest.raises(ArtifactError, match="manifest_sha256"):
            parse_manifest(changed, "manifest.json")


FAULTS = {
    "codes without scales": (
        assign("weights/tensors/0/storage/layout", "mxfp4"),
        "weights.tensors[embed.weight].scales",
    ),
    "scales that are not there": (
        lambda raw: raw["weights"]["tensors"][0].update(
            storage={"layout": "int8_row", "dtype": "float32", "shape": [8, 4]}, scales="embed.scales"
        ),
        "weights.tensors[embed.weight].scales",
    ),
    "scales of a plain weight": (
        assign("weights/tensors/0/scales", "embed.weight"),
        "weights.tensors[embed.weight].scales",
    ),
    "a newer major": (assign("format_version", "3.0"), "format_version"),
    "an older major": (assign("format_version", "1.0"), "format_version"),
    "a requirement of the future": (assign("requires/0", "libquantum"), "requires"),
    "a repeated requirement": (assign("requires/1", "libtorch"), "requires"),
    "no version": (assign("format_version", 1), "format_version"),
    "an unknown key": (assign("colour", 1), "colour"),
    "an unknown nested key": (assign("limits/colour", 1), "limits.colour"),
    "a missing key": (lambda raw: raw["limits"].pop("slots"), "limits.slots"),
    "a boolean for an integer": (assign("speculation/num_steps", True), "speculation.num_steps"),
    "a float for an integer": (assign("limits/slots", 2.0), "limits.slots"),
    "text for an array": (assign("producer/command", "x"), "producer.command"),
    "k beyond the blocks": (assign("speculation/num_steps", 9), "speculation.num_steps"),
    "a window of another k": (
        assign("speculation/num_draft_tokens", 3),
        "speculation.num_draft_tokens",
    ),
    "batch sizes out of order": (assign("limits/batch_sizes", [2, 1]), "limits.batch_sizes"),
    "no batch sizes": (assign("limits/batch_sizes", []), "limits.batch_sizes"),
    "slots of another batch": (assign("limits/slots", 4), "limits.slots"),
    "another device": (assign("target/device", "tpu"), "target.device"),
    "an EOS id beyond the vocabulary": (assign("model/eos_token_ids", [8]), "model.eos_token_ids"),
    "moved block fields": (assign("blocks/control/fields/pos", [1, 1]), "blocks.control"),
    "an unknown graph": (assign("graphs/0/name", "warp"), "graphs[warp.b1].name"),
    "a batch beyond the slots": (assign("graphs/0/batch", 3), "graphs[prefill.b3].batch"),
    "an undeclared tensor": (
        assign("graphs/0/tensors/1/name", "window_9"),
        "graphs[prefill.b1].tensors[window_9]",
    ),
    "a tensor of another shape": (
        assign("graphs/0/tensors/1/shape", [32, 8]),
        "graphs[prefill.b1].tensors[window_0]",
    ),
    "a tensor of another kind": (
        assign("graphs/0/tensors/1/kind", "input"),
        "graphs[prefill.b1].tensors[window_0]",
    ),
    "a block of a graph that returns none": (
        assign("graphs/0/returns", "result"),
        "graphs[prefill.b1].returns",
    ),
    "a block that is none": (assign("graphs/0/returns", "window_0"), "graphs[0].returns"),
    "no block of a graph that returns one": (
        lambda raw: raw["target"].update(device="npu", emit="om"),
        "graphs[prefill.b1].returns",
    ),
    "a block that the graph does not bind": (
        lambda raw: (
            raw["target"].update(device="npu", emit="om"),
            raw["graphs"][0].update(returns="control"),
        ),
        "graphs[prefill.b1].returns",
    ),
    "a repeated graph": (lambda raw: raw["graphs"].append(raw["graphs"][0]), "graphs"),
    "a repeated weight": (
        lambda raw: raw["weights"]["tensors"].append(raw["weights"]["tensors"][0]),
        "weights.tensors",
    ),
    "an unknown dtype": (assign("state/1/dtype", "float8"), "state[window_0].dtype"),
    "an empty shape": (assign("inputs/0/shape", [0]), "inputs[prompt_slot].shape"),
    "a path out of the folder": (assign("graphs/0/file", "../x.so"), "file"),
    "an absolute path": (assign("weights/file", "/etc/passwd"), "file"),
    "two records of one file": (assign("golden/file", "tokenizer.json"), "file"),
    "a hash in capitals": (assign("golden/sha256", HASH.upper()), "golden.safetensors: sha256"),
    "a header longer than its file": (assign("weights/header_bytes", 193), "weights.header_bytes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_refusals_name_file_key_expected_and_found(fault: str) -> None:
    change, key = FAULTS[fault]
    with pytest.raises(ArtifactError) as caught:
        parse_manifest(sealed(change), "folder/manifest.json")
    error = caught.value
    assert error.file == "folder/manifest.json"
    assert error.key is not None and error.key.startswith(key)
    assert error.expected is not None and error.found is not None
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "text", ["", "[]", "nonsense", '{"a": NaN}', '{"a": 1, "a": 2}', "[" * 100_000], ids=range(6)
)
def test_what_is_no_manifest_at_all(text: str) -> None:
    with pytest.raises(ArtifactError):
        parse_manifest(text, "manifest.json")


def test_a_newer_minor_may_add_keys() -> None:
    def newer(raw: dict[str, Any]) -> None:
        raw |= {"format_version": "2.7", "colour": "blue"}
        raw["limits"]["shade"] = 3

    assert parse_manifest(sealed(newer), "manifest.json").format_version == "2.7"


@pytest.mark.parametrize(
    ("producer", "command"),
    [
        (
            {"command": ["nextn-compile", "my folder", "-o", "art"]},
            "nextn-compile 'my folder' -o art --force",
        ),
        (None, "nextn-compile CHECKPOINT -o ARTIFACT --force"),
    ],
)
def test_an_older_artifact_is_refused_with_the_command_that_rebuilds_it(
    producer: object, command: str
) -> None:
    text = sealed(lambda raw: raw.update(format_version="1.0", producer=producer))
    with pytest.raises(ArtifactError) as caught:
        parse_manifest(text, "manifest.json")
    assert caught.value.message == f"artifact of another format; compile it again: {command}"
