"""Damaged and malicious artifacts: each is refused with one line that names the fault."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.artifact_builder import read_json, write_json, write_weights_text

from .conftest import Build, Outcome

OK, ARTIFACT, RUNTIME = 0, 4, 5

Edit = Callable[[Any], Any]


@pytest.fixture
def copy(artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(artifact, tmp_path / "artifact"))


def open_operation(folder: Path, fake_torch: str, **params: Any) -> tuple[str, Outcome]:
    return "open", {"artifact": str(folder), "torch_library": fake_torch, **params}


def open_error(build: Build, folder: Path, fake_torch: str, status: int = ARTIFACT, **params: Any) -> str:
    """The error of an open that must fail, checked to be one printable line."""
    return refusal(build.host(open_operation(folder, fake_torch, **params))[0], status)


def refusal(outcome: Outcome, status: int = ARTIFACT) -> str:
    assert outcome["status"] == status, outcome
    assert not outcome["made"]
    text: str = outcome["error"]
    assert text and text.isprintable()
    return text


def put(*path: str | int, value: Any) -> Edit:
    def edit(manifest: Any) -> None:
        place = manifest
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return edit


def drop(*path: str | int) -> Edit:
    def edit(manifest: Any) -> None:
        place = manifest
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return edit


def repeat(*path: str | int) -> Edit:
    def edit(manifest: Any) -> None:
        place = manifest
        for key in path:
            place = place[key]
        place.append(place[0])

    return edit


def for_acl(edit: Edit) -> Edit:
    def both(manifest: Any) -> None:
        manifest["target"] |= {"device": "npu", "emit": "om"}
        edit(manifest)

    return both


HOSTILE_VALUES: list[tuple[str, Edit, str]] = [
    ("newer major", put("format_version", value="3.0"), "format_version"),
    ("no minor", put("format_version", value="1"), "format_version"),
    ("version is a number", put("format_version", value=1.0), "format_version"),
    (
        "unknown device",
        put("target", "device", value="tpu"),
        "target.device, expected cpu",
    ),
    ("other device", put("target", "device", value="npu"), "key target.device, expected cpu"),
    ("other graph format", put("target", "emit", value="om"), "key target.device, expected npu"),
    ("unknown requirement", put("requires", value=["libquantum"]), "requires[0], expected libtorch or"),
    ("requirements of numbers", put("requires", value=[7]), "requires[0]"),
    ("no requirements", put("requires", value=None), "requires"),
    (
        "older major, with the command that made it",
        lambda manifest: manifest.update(
            format_version="1.0", producer=manifest["producer"] | {"command": ["nextn-compile", "demo"]}
        ),
        "artifact of another format; compile it again: nextn-compile demo --force",
    ),
    ("two ranks", put("target", "world_size", value=2), "target.world_size"),
    ("wider isa", put("target", "isa", value=["avx99"]), "target.isa"),
    ("isa of numbers", put("target", "isa", value=[7]), "target.isa[0]"),
    ("isa is an object", put("target", "isa", value={}), "target.isa"),
    ("no producer", drop("producer"), "producer"),
    ("other torch", put("producer", "torch", value="2.12.1"), "expected 2.12.1, found 2.13.0"),
    ("nonsense torch", put("producer", "torch", value="x\x01\n" * 999), "producer.torch"),
    ("vocab 0", put("model", "vocab_size", value=0), "model.vocab_size"),
    ("vocab 2^31", put("model", "vocab_size", value=2**31), "model.vocab_size"),
    ("vocab a float", put("model", "vocab_size", value=61.0), "model.vocab_size"),
    ("vocab a string", put("model", "vocab_size", value="61"), "model.vocab_size"),
    ("nine eos", put("model", "eos_token_ids", value=[1] * 9), "model.eos_token_ids"),
    ("eos outside", put("model", "eos_token_ids", value=[61]), "model.eos_token_ids[0]"),
    ("eos null", put("model", "eos_token_ids", value=None), "model.eos_token_ids"),
    ("k = 9", put("speculation", "num_steps", value=9), "speculation.num_steps"),
    ("k negative", put("speculation", "num_steps", value=-1), "speculation.num_steps"),
    ("drafts do not match", put("speculation", "num_draft_tokens", value=3), "speculation.num_draft_tokens"),
    ("speculation is a list", put("speculation", value=[]), "speculation"),
    ("no context", put("limits", "max_seq_len", value=1), "limits.max_seq_len"),
    ("context 2^63", put("limits", "max_seq_len", value=2**63), "limits.max_seq_len"),
    ("context 1e400", put("limits", "max_seq_len", value=10**400), "invalid JSON"),
    ("chunk 0", put("limits", "prefill_chunk", value=0), "limits.prefill_chunk"),
    ("chunk differs", put("limits", "prefill_chunk", value=9), "prompt_tokens"),
    ("window", put("limits", "max_window_rows", value=8), "limits.max_window_rows"),
    ("no batches", put("limits", "batch_sizes", value=[]), "limits.batch_sizes"),
    ("batches fall", put("limits", "batch_sizes", value=[4, 2]), "limits.batch_sizes[1]"),
    ("batch 2^40", put("limits", "batch_sizes", value=[1, 2**40]), "limits.batch_sizes[1]"),
    ("slots differ", put("limits", "slots", value=3), "limits.slots"),
    ("limits null", put("limits", value=None), "limits"),
    ("no control", drop("state", 0), "control"),
    ("control too narrow", put("state", 0, "row_width", value=31), "control"),
    ("control of floats", put("state", 0, "dtype", value="float32"), "control"),
    ("state rows 0", put("state", 2, "rows_per_slot", value=0), "state[2].rows_per_slot"),
    ("state overflow", put("state", 2, "rows_per_slot", value=2**48), "history"),
    ("state repeated", repeat("state"), "repeated name"),
    ("state of objects", put("state", value={}), "state"),
    ("state dtype", put("state", 2, "dtype", value="complex64"), "state[2].dtype"),
    ("input missing", drop("inputs", 0), "slots_b1"),
    ("input named as state", put("inputs", 0, "name", value="control"), "repeated name"),
    ("input rank 9", put("inputs", 0, "shape", value=[1] * 9), "inputs[0].shape"),
    ("input negative", put("inputs", 0, "shape", value=[-1]), "inputs[0].shape[0]"),
    ("input too large", put("inputs", 0, "shape", value=[2**40, 2**40]), "inputs[0].shape"),
    ("pos moved", put("blocks", "control", "fields", "pos", value=[1, 1]), "blocks.control.fields.pos[0]"),
    ("eos shorter", put("blocks", "control", "fields", "eos", value=[11, 4]), "blocks.control.fields.eos[1]"),
    ("field a number", put("blocks", "control", "fields", "pos", value=0), "blocks.control.fields.pos"),
    ("field gone", drop("blocks", "result", "fields", "out"), "blocks.result.fields.out"),
    ("result wider", put("blocks", "result", "width", value=32), "blocks.result.width"),
    ("graphs null", put("graphs", value=None), "graphs"),
    ("graph repeated", repeat("graphs"), "graphs prefill.b1"),
    ("no returns", for_acl(put("graphs", 0, "rows", value=1)), "graphs[0].returns"),
    ("returns", for_acl(put("graphs", 0, "returns", value="history")), "expected result or control"),
    ("graph batch", put("graphs", 0, "batch", value=-1), "graphs[0].batch"),
    ("graph name", put("graphs", 0, "name", value=""), "graphs[0].name"),
    ("graph hash", put("graphs", 0, "sha256", value="0" * 64), "graph was changed"),
    ("graph hash short", put("graphs", 0, "sha256", value="0" * 63), "graphs[0].sha256"),
    ("graph hash upper", put("graphs", 0, "sha256", value="A" * 64), "graphs[0].sha256"),
    ("graph size", put("graphs", 0, "bytes", value=1), "wrong size"),
    ("graph size 2^64", put("graphs", 0, "bytes", value=2**64 - 1), "graphs[0].bytes"),
    ("graph absent", put("graphs", 0, "file", value="graphs/none.so"), "cannot open"),
    ("graph a folder", put("graphs", 0, "file", value="graphs"), "a regular file"),
    ("absolute path", put("graphs", 0, "file", value="/etc/passwd"), "a path inside the artifact"),
    ("path leaves", put("graphs", 0, "file", value="graphs/../../x.so"), "a path inside the artifact"),
    ("path is ..", put("graphs", 0, "file", value=".."), "a path inside the artifact"),
    ("path with NUL", put("graphs", 0, "file", value="graphs/a\0.so"), "graphs[0].file"),
    ("tensor repeated", repeat("graphs", 0, "tensors"), "repeated name"),
    ("tensor kind", put("graphs", 0, "tensors", 0, "kind", value="output"), "graphs[0].tensors[0].kind"),
    ("tensor unknown", put("graphs", 0, "tensors", 1, "name", value="caches"), "prefill.b1 caches"),
    ("no prompt count", drop("graphs", 0, "tensors", -1), "expected prompt_count"),
    ("state as input", put("graphs", 0, "tensors", 1, "kind", value="input"), "prefill.b1 control"),
    ("weight as state", put("graphs", 0, "tensors", 0, "kind", value="state"), "prefill.b1 embed"),
    (
        "state shape",
        put("graphs", 0, "tensors", 1, "shape", value=[5, 33]),
        "expected int64 [5, 32], found int64 [5, 33]",
    ),
    ("state dtype differs", put("graphs", 0, "tensors", 1, "dtype", value="int32"), "prefill.b1 control"),
    (
        "weight shape",
        put("graphs", 0, "tensors", 0, "shape", value=[4]),
        "expected float32 [4], found float32 [3]",
    ),
    ("weight dtype", put("graphs", 0, "tensors", 0, "dtype", value="bfloat16"), "prefill.b1 embed"),
    ("weight unknown", put("graphs", 0, "tensors", 0, "name", value="head"), "prefill.b1 head"),
    ("weights null", put("weights", value=None), "weights"),
    ("weights path", put("weights", "file", value="../weights.safetensors"), "a path inside the artifact"),
    ("weights size", put("weights", "bytes", value=10**6), "wrong size"),
    ("weights header", put("weights", "header_bytes", value=16), "wrong header length"),
    ("weights header huge", put("weights", "header_bytes", value=2**40), "weights.header_bytes"),
    ("weights header hash", put("weights", "header_sha256", value="1" * 64), "key header_sha256"),
    ("weights name as state", put("weights", "tensors", 0, "name", value="control"), "repeated name"),
    ("weights missing", put("weights", "tensors", value=[{"name": "embed"}, {"name": "b"}]), "key b"),
]


@pytest.fixture
def folders(artifact: Path, tmp_path: Path) -> Callable[[], Path]:
    """Copies of the sound artifact that share its graphs and weights through links."""
    numbers = itertools.count()

    def make() -> Path:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        for name in ("graphs", "weights.safetensors"):
            (folder / name).symlink_to(artifact / name)
        write_json(folder, read_json(artifact))
        return folder

    return make


def test_hostile_manifests(build: Build, folders: Callable[[], Path], fake_torch: str) -> None:
    operations = []
    for _, edit, _ in HOSTILE_VALUES:
        folder = folders()
        manifest = read_json(folder)
        edit(manifest)
        write_json(folder, manifest)
        operations.append(open_operation(folder, fake_torch))
    for (name, _, text), outcome in zip(HOSTILE_VALUES, build.host(*operations), strict=True):
        error = refusal(outcome)
        assert text in error, name
        assert "(file " in error, name


NOT_MANIFESTS = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"1.0"',
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"a":' * 100 + b"1" + b"}" * 100,
    b'{"format_version": "2.0", "format_version": "2.0"}',
    b'{"format_version": "2.0"}',
    b'{"format_version": "2.0", "manifest_sha256": 7}',
    b'{"format_version": "2.0", "manifest_sha256": "' + b"0" * 64 + b'"}',
]


def test_manifests_that_are_none(build: Build, folders: Callable[[], Path], fake_torch: str) -> None:
    operations = []
    for text in NOT_MANIFESTS:
        folder = folders()
        (folder / "manifest.json").write_bytes(text)
        operations.append(open_operation(folder, fake_torch))
    for outcome in build.host(*operations):
        assert "manifest.json" in refusal(outcome)


def test_every_value_of_another_type(build: Build, folders: Callable[[], Path], fake_torch: str) -> None:
    """Each value the library reads, replaced by each JSON type, is refused or harmless, never a crash."""
    operations = []
    for path in value_paths(read_json(folders())):
        for value in (None, True, -1, 2**63, 1.5, "", "x", [], [[]], {}, {"": 0}):
            folder = folders()
            manifest = read_json(folder)
            put(*path, value=value)(manifest)
            write_json(folder, manifest)
            operations.append(open_operation(folder, fake_torch))
    outcomes = build.host(*operations)
    assert {outcome["status"] for outcome in outcomes} <= {OK, ARTIFACT}
    assert sum(outcome["status"] == ARTIFACT for outcome in outcomes) > len(outcomes) // 2


def value_paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a document, of long arrays only the first entry."""
    paths = [path] if path else []
    if isinstance(value, dict):
        children: list[tuple[str | int, Any]] = list(value.items())
    else:
        children = list(enumerate(value))[:1] if isinstance(value, list) else []
    for key, child in children:
        if key not in ("manifest_sha256", "config", "ops", "golden", "fields"):
            paths += value_paths(child, (*path, key))
    return paths


def test_manifest_edited_by_hand(build: Build, copy: Path, fake_torch: str) -> None:
    file = copy / "manifest.json"
    file.write_text(file.read_text().replace('"g++"', '"clang"'))
    assert "key manifest_sha256" in open_error(build, copy, fake_torch)


def test_manifest_hash_written_twice(build: Build, copy: Path, fake_torch: str) -> None:
    file = copy / "manifest.json"
    digest = read_json(copy)["manifest_sha256"]
    file.write_text(file.read_text().replace('"g++"', f'"{digest}"'))
    assert "these digits once" in open_error(build, copy, fake_torch)


def test_newer_minor_is_read(build: Build, copy: Path, fake_torch: str) -> None:
    manifest = read_json(copy)
    manifest["format_version"] = "2.7"
    manifest["novelty"] = {"x": [1]}
    write_json(copy, manifest)
    assert build.host(open_operation(copy, fake_torch))[0]["status"] == OK


def test_isa_of_this_machine(build: Build, copy: Path, fake_torch: str) -> None:
    """What /proc/cpuinfo lists is accepted, under the kernel's spelling and without its underscores."""
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if flags is None:
        pytest.skip("this processor has no cpuid flags")
    known = re.compile(
        r"avx|avx2|fma|f16c|avx512(f|bw|dq|vl|cd)|avx512_(vnni|bf16|fp16)|amx_(tile|bf16|int8)"
    )
    isa = [flag for flag in flags[1].split() if known.fullmatch(flag)]
    manifest = read_json(copy)
    manifest["target"]["isa"] = isa + [flag.replace("_", "") for flag in isa]
    write_json(copy, manifest)
    assert build.host(open_operation(copy, fake_torch))[0]["status"] == OK


WeightsCase = tuple[str, bytes, str]
ONE = '{"embed": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}'
HOSTILE_WEIGHTS: list[WeightsCase] = [
    ("", bytes(12), "invalid JSON"),
    ("[]", bytes(12), "an object"),
    (ONE, bytes(16), "tensors do not cover the file"),
    (ONE, bytes(8), "tensors do not cover the file"),
    (ONE.replace("[3]", "[4]"), bytes(12), "dtype and shape contradict data_offsets"),
    (ONE.replace("[3]", "[4294967296, 4294967296]"), bytes(12), "contradict"),
    (ONE.replace("[3]", "[-3]"), bytes(12), "embed.shape[0]"),
    (ONE.replace("[3]", "null"), bytes(12), "embed.shape"),
    (ONE.replace("F32", "F31"), bytes(12), "known dtype"),
    (ONE.replace('"F32"', "4"), bytes(12), "embed.dtype"),
    (ONE.replace("[0, 12]", "[4, 16]"), bytes(16), "hole between tensors"),
    (ONE.replace("[0, 12]", "[12, 0]"), bytes(12), "embed.data_offsets[1]"),
    (ONE.replace("[0, 12]", "[0, 12, 24]"), bytes(12), "data_offsets [begin, end]"),
    (ONE.replace("[0, 12]", "[0, 18446744073709551615]"), bytes(12), "embed.data_offsets[1]"),
    (ONE[:-1] + ", " + ONE[1:], bytes(12), "a repeated key"),
    (ONE[:-1] + ', "b": {"dtype": "U8", "shape": [1], "data_offsets": [11, 12]}}', bytes(12), "overlapping"),
    (
        '{"b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, ' + ONE[1:].replace("0, 12", "1, 13"),
        bytes(13),
        "misaligned",
    ),
]


def test_hostile_weights(build: Build, folders: Callable[[], Path], fake_torch: str) -> None:
    operations = []
    for header, body, _ in HOSTILE_WEIGHTS:
        folder = folders()
        manifest = read_json(folder)
        (folder / "weights.safetensors").unlink()
        file = folder / "weights.safetensors"
        tensors = manifest["weights"]["tensors"]
        manifest["weights"] = asdict(write_weights_text(file, header, body)) | {"tensors": tensors}
        write_json(folder, manifest)
        operations.append(open_operation(folder, fake_torch))
    for (header, _, text), outcome in zip(HOSTILE_WEIGHTS, build.host(*operations), strict=True):
        error = refusal(outcome)
        assert text in error and "weights.safetensors" in error, header


def test_state_larger_than_memory(build: Build, copy: Path, fake_torch: str) -> None:
    manifest = read_json(copy)
    manifest["state"].append({"name": "sea", "rows_per_slot": 2**40, "row_width": 2**10, "dtype": "int64"})
    write_json(copy, manifest)
    opened, created = build.host(open_operation(copy, fake_torch), ("create", {}))
    assert opened["status"] == OK
    assert "cannot allocate state" in refusal(created, RUNTIME)


def test_weights_body_is_hashed_on_request(build: Build, copy: Path, fake_torch: str) -> None:
    file = copy / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert build.host(open_operation(copy, fake_torch))[0]["status"] == OK
    assert "key body_sha256" in open_error(build, copy, fake_torch, verify_weights=True)


def test_damaged_files(build: Build, copy: Path, fake_torch: str) -> None:
    graph = copy / "graphs/round.b4.so"
    data = bytearray(graph.read_bytes())
    data[5000] ^= 1
    graph.write_bytes(data)
    assert "round.b4.so" in open_error(build, copy, fake_torch)
    graph.write_bytes(data[:-1])
    assert "wrong size" in open_error(build, copy, fake_torch)
    graph.unlink()
    os.mkfifo(graph)
    assert "a regular file" in open_error(build, copy, fake_torch)
    (copy / "weights.safetensors").write_bytes(b"")
    graph.unlink()
    assert "cannot open" in open_error(build, copy, fake_torch)
    assert "manifest.json" in open_error(build, copy / "nowhere", fake_torch)


def test_nothing_is_loaded_before_all_is_checked(build: Build, copy: Path, tmp_path: Path) -> None:
    """The last check is torch's version; a library that is not torch fails there, not in a graph."""
    error = open_error(build, copy, str(tmp_path / "libtorch_cpu.so"), RUNTIME)
    assert "cannot load libtorch_cpu" in error
    assert "libtorch_cpu lacks a symbol" in open_error(build, copy, "libm.so.6", RUNTIME)


def test_other_torch(build: Build, artifact: Path, fake_torch: str) -> None:
    outcome = build.host(open_operation(artifact, fake_torch), FAKE_TORCH_MINOR="14")[0]
    assert "key producer.torch, expected 2.13.0+cpu, found 2.14.0" in refusal(outcome)
