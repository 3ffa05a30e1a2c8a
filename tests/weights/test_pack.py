"""The packed file: bytes, alignment, stock readability, manifest entries, atomicity."""

import errno
import hashlib
import json
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nextn.runtime.contract.errors import ArtifactError, CheckpointError, ExecutionError, ExitCode
from nextn.weights import (
    Checkpoint,
    load_packed,
    load_weights,
    pack_weights,
    packed_weights,
    read_packed_header,
)
from nextn.weights.aligned_file import AlignedFileWriter
from tests.weights.folders import raw_bytes, tiny_config, tiny_tensors, write_folder

DTYPES = [torch.float32, torch.bfloat16]

INVERSE_FREQUENCIES = torch.tensor([1.0, 0.1, 0.01])


def expected_tiny(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A sample of packed weights, put together by hand from the source tensors."""
    source = tiny_tensors()
    compressor, indexer = "layers.1.attn.compressor.", "layers.1.attn.indexer.compressor."
    shared = "mtp.0.ffn.shared_experts."
    experts = [f"mtp.0.ffn.experts.{expert}." for expert in range(6)]
    fused = [torch.cat([source[f"{name}w1.weight"], source[f"{name}w3.weight"]]) for name in experts]
    return {
        "embed.weight": source["embed.weight"].to(dtype),
        "head.weight": source["head.weight"],
        "hc_head_base": source["hc_head_base"],
        "layers.0.ffn.gate.tid2eid": source["layers.0.ffn.gate.tid2eid"],
        "layers.1.attn.wo_a.weight": source["layers.1.attn.wo_a.weight"].to(dtype),
        "layers.1.attn.attn_sink": source["layers.1.attn.attn_sink"],
        f"{compressor}wkv_gate.weight": torch.cat(
            [source[f"{compressor}wkv.weight"], source[f"{compressor}wgate.weight"]]
        ),
        f"{compressor}ape": source[f"{compressor}ape"],
        f"{indexer}wkv_gate.weight": torch.cat(
            [source[f"{indexer}wkv.weight"], source[f"{indexer}wgate.weight"]]
        ),
        "layers.1.attn.indexer.weights_proj.weight": source["layers.1.attn.indexer.weights_proj.weight"].to(
            dtype
        ),
        "mtp.0.ffn.experts.w13.weight": torch.stack(fused).to(dtype),
        "mtp.0.ffn.experts.w2.weight": torch.stack([source[f"{name}w2.weight"] for name in experts]).to(
            dtype
        ),
        "mtp.0.ffn.shared_experts.w13.weight": torch.cat(
            [source[f"{shared}w1.weight"], source[f"{shared}w3.weight"]]
        ).to(dtype),
        "mtp.0.e_proj.weight": source["mtp.0.e_proj.weight"].to(dtype),
        "mtp.0.enorm.weight": source["mtp.0.enorm.weight"],
        "mtp.0.hc_head_fn": source["mtp.0.hc_head_fn"],
    }


def pack(folder: Path, out: Path, dtype: torch.dtype = torch.float32, **options) -> list[dict]:
    checkpoint = Checkpoint.open(folder)
    return pack_weights(checkpoint, packed_weights(checkpoint.config, True), dtype, out, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_values(original, tmp_path, dtype):
    pack(original, tmp_path / "weights", dtype)
    mapped = load_packed(tmp_path / "weights")
    for name, tensor in expected_tiny(dtype).items():
        assert mapped[name].dtype == tensor.dtype, name
        assert torch.equal(mapped[name], tensor), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_and_file_hold_the_same(original, tmp_path, dtype):
    checkpoint = Checkpoint.open(original)
    packed = packed_weights(checkpoint.config, with_nextn=True)
    pack_weights(checkpoint, packed, dtype, tmp_path / "weights")
    mapped, loaded = load_packed(tmp_path / "weights"), load_weights(checkpoint, packed, dtype)
    assert mapped.keys() == loaded.keys() == {weight.name for weight in packed}
    for weight in packed:
        assert raw_bytes(mapped[weight.name]) == raw_bytes(loaded[weight.name])
        assert mapped[weight.name].shape == loaded[weight.name].shape == weight.shape
        assert weight.nbytes(dtype) == loaded[weight.name].nbytes


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_precision_sources(tmp_path, stored):
    """Norms and heads stored in half precision become float32; matrices take the compute dtype."""
    source = {
        name: tensor.to(stored) if tensor.is_floating_point() else tensor.to(torch.int32)
        for name, tensor in tiny_tensors().items()
    }
    pack(write_folder(tmp_path / "half", tiny_config(), source), tmp_path / "weights", torch.bfloat16)
    mapped = load_packed(tmp_path / "weights")
    assert torch.equal(mapped["head.weight"], source["head.weight"].float())
    assert torch.equal(mapped["layers.1.attn.q_norm.weight"], source["layers.1.attn.q_norm.weight"].float())
    assert torch.equal(mapped["embed.weight"], source["embed.weight"].to(torch.bfloat16))
    assert torch.equal(mapped["layers.0.ffn.gate.tid2eid"], source["layers.0.ffn.gate.tid2eid"].long())
    assert mapped["layers.0.ffn.gate.tid2eid"].dtype == torch.int64


def test_stock_safetensors_reads_the_file(original, tmp_path):
    pack(original, tmp_path / "weights", extra={"inverse_frequencies": INVERSE_FREQUENCIES})
    mapped = load_packed(tmp_path / "weights")
    with safe_open(tmp_path / "weights", "pt") as stock:
        names = set(stock.keys())
        assert {name for name in names if not name.startswith("__pad.")} == mapped.keys()
        for name, tensor in mapped.items():
            assert torch.equal(stock.get_tensor(name), tensor)
        for name in names - mapped.keys():
            assert stock.get_tensor(name).dtype == torch.uint8
            assert not stock.get_tensor(name).any()


def test_alignment(tmp_path):
    """64 bytes for every tensor, 2 MiB for tensors of at least that, in the file and so when mapped."""
    config = tiny_config() | {"vocab_size": 8192}
    tensors = tiny_tensors()
    tensors["embed.weight"] = torch.randn(8192, 64)
    tensors["head.weight"] = torch.randn(8192, 64)
    tensors["layers.0.ffn.gate.tid2eid"] = torch.zeros(8192, 2, dtype=torch.int64)
    folder = write_folder(tmp_path / "wide", config, tensors)
    entries = {entry["name"]: entry for entry in pack(folder, tmp_path / "weights")}
    large = [name for name, entry in entries.items() if entry["nbytes"] >= 2**21]
    assert sorted(large) == ["embed.weight", "head.weight"]
    assert all(entries[name]["offset"] % 2**21 == 0 for name in large)
    assert all(entry["offset"] % 64 == 0 for entry in entries.values())
    mapped = load_packed(tmp_path / "weights")
    assert all(tensor.data_ptr() % 64 == 0 for tensor in mapped.values())
    assert torch.equal(mapped["head.weight"], tensors["head.weight"])
    with safe_open(tmp_path / "weights", "pt") as stock:
        assert torch.equal(stock.get_tensor("embed.weight"), tensors["embed.weight"])


def test_manifest_entries_describe_the_file(original, tmp_path):
    entries = pack(
        original, tmp_path / "weights", torch.bfloat16, extra={"inverse_frequencies": INVERSE_FREQUENCIES}
    )
    content = (tmp_path / "weights").read_bytes()
    header = read_packed_header(tmp_path / "weights")
    assert [entry["name"] for entry in entries] == list(header)
    for entry in entries:
        data = content[entry["offset"] : entry["offset"] + entry["nbytes"]]
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert entry["storage"] == {"layout": "plain", "dtype": entry["dtype"], "shape": entry["shape"]}
        assert entry["scales"] is None
        assert header[entry["name"]].offset == entry["offset"]
        assert list(header[entry["name"]].shape) == entry["shape"]
    by_name = {entry["name"]: entry for entry in entries}
    assert by_name["layers.0.attn.wq_a.weight"]["dtype"] == "bfloat16"
    assert by_name["layers.0.attn.q_norm.weight"]["dtype"] == "float32"
    assert by_name["layers.0.ffn.gate.tid2eid"]["dtype"] == "int64"
    extra = by_name["inverse_frequencies"]
    assert (extra["role"], extra["source"], extra["shape"]) == ("float32", [], [3])
    json.dumps(entries)


def test_manifest_sources_are_the_bytes_on_disk(original, tmp_path):
    entries = pack(original, tmp_path / "weights", torch.bfloat16)
    tensors, seen = tiny_tensors(), []
    for entry in entries:
        for file, name, sha256 in entry["source"]:
            assert file == "model.safetensors"
            assert sha256 == hashlib.sha256(raw_bytes(tensors[name])).hexdigest()
            seen.append(name)
    assert sorted(seen) == sorted(tensors)
    fused = next(entry for entry in entries if entry["name"] == "layers.1.attn.compressor.wkv_gate.weight")
    assert [name.split(".")[-2] for _, name, _ in fused["source"]] == ["wkv", "wgate"]


def test_packing_twice_gives_the_same_bytes(original, tmp_path):
    pack(original, tmp_path / "a")
    pack(original, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_progress_ends_at_the_file_size(original, tmp_path):
    calls = []
    entries = pack(original, tmp_path / "weights", progress=lambda *call: calls.append(call))
    size = (tmp_path / "weights").stat().st_size
    assert list(dict.fromkeys(name for name, _, _ in calls)) == [entry["name"] for entry in entries]
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    assert calls[-1][1:] == (size, size)


@pytest.mark.parametrize("bad", [-1, 6])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_expert_index_out_of_range(tmp_path, bad, dtype):
    tensors = tiny_tensors()
    table = tensors["layers.0.ffn.gate.tid2eid"].to(dtype)
    table[17, 1] = bad
    tensors["layers.0.ffn.gate.tid2eid"] = table
    folder = write_folder(tmp_path / "bad", tiny_config(), tensors)
    with pytest.raises(CheckpointError, match="expert index out of range") as caught:
        pack(folder, tmp_path / "weights")
    assert (caught.value.key, caught.value.found) == ("layers.0.ffn.gate.tid2eid", bad)
    assert not (tmp_path / "weights").exists()


def test_source_that_shrinks_after_opening(tmp_path):
    folder = write_folder(tmp_path / "source", tiny_config(), tiny_tensors())
    checkpoint = Checkpoint.open(folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100_000])
    with pytest.raises(CheckpointError, match="truncated file") as caught:
        load_weights(checkpoint, packed_weights(checkpoint.config, True), torch.float32)
    assert caught.value.file == str(file)
    assert caught.value.key in checkpoint.tensors


def full_disk_faults():
    """Where the disk fills up: at once, in the middle, when the last bytes are synced."""
    real = AlignedFileWriter.write

    def failing_write(limit):
        def write(self, data):
            if self._file.tell() + len(data) > limit:
                self._file.close()
                self._file = FullFile()
            real(self, data)

        return write

    return {"first": failing_write(0), "middle": failing_write(200_000)}


class FullFile:
    """A file on a full disk."""

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    def tell(self):
        return 0

    def close(self):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", ["first", "middle"])
def test_full_disk_leaves_nothing(original, tmp_path, monkeypatch, place):
    monkeypatch.setattr(AlignedFileWriter, "write", full_disk_faults()[place])
    with pytest.raises(ExecutionError, match="No space left on device") as caught:
        pack(original, tmp_path / "weights")
    assert caught.value.exit_code == ExitCode.RUNTIME
    assert caught.value.file == str(tmp_path / "weights")
    assert "bytes of free space" in caught.value.expected
    assert list(tmp_path.iterdir()) == []


def test_full_disk_while_syncing_leaves_nothing(original, tmp_path, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(ExecutionError, match="No space left on device"):
        pack(original, tmp_path / "weights")
    assert list(tmp_path.iterdir()) == []


LIMITED_PACK = """
import resource, sys, torch
from pathlib import Path
from nextn.runtime.contract.errors import ExecutionError
from nextn.weights import Checkpoint, pack_weights, packed_weights
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
checkpoint = Checkpoint.open(sys.argv[1])
try:
    pack_weights(checkpoint, packed_weights(checkpoint.config, True), torch.float32, Path(sys.argv[2]))
except ExecutionError as error:
    print(error)
    sys.exit(int(error.exit_code))
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no file size limits on this system")
def test_a_really_failing_write_leaves_nothing(original, tmp_path):
    command = [sys.executable, "-c", LIMITED_PACK, str(original), str(tmp_path / "weights")]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == ExitCode.RUNTIME, finished.stderr
    assert "cannot write weights" in finished.stdout
    assert list(tmp_path.iterdir()) == []


def test_failed_packing_keeps_the_previous_file(original, tmp_path, monkeypatch):
    (tmp_path / "weights").write_bytes(b"previous")
    monkeypatch.setattr(AlignedFileWriter, "write", full_disk_faults()["middle"])
    with pytest.raises(ExecutionError):
        pack(original, tmp_path / "weights")
    assert (tmp_path / "weights").read_bytes() == b"previous"


def test_folder_that_is_not_there(original, tmp_path):
    with pytest.raises(ExecutionError, match="No such file"):
        pack(original, tmp_path / "absent" / "weights")


def test_damaged_packed_file_is_an_artifact_fault(original, tmp_path):
    pack(original, tmp_path / "weights")
    content = (tmp_path / "weights").read_bytes()
    (tmp_path / "weights").write_bytes(content[:-1])
    with pytest.raises(ArtifactError, match="truncated file"):
        load_packed(tmp_path / "weights")
    (tmp_path / "weights").write_bytes(struct.pack("<Q", 2**40) + content[8:])
    with pytest.raises(ArtifactError, match="header too long"):
        read_packed_header(tmp_path / "weights")


def test_mapped_file_of_a_foreign_dtype(tmp_path):
    save_file({"odd": torch.zeros(3, dtype=torch.float64)}, tmp_path / "weights")
    with pytest.raises(ArtifactError, match="unknown dtype"):
        load_packed(tmp_path / "weights")


def test_writing_to_a_mapped_tensor_leaves_the_file(original, tmp_path):
    pack(original, tmp_path / "weights")
    before = (tmp_path / "weights").read_bytes()
    load_packed(tmp_path / "weights")["norm.weight"].zero_()
    assert (tmp_path / "weights").read_bytes() == before
