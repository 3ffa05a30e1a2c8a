"""An interrupted packing continues where it was, and ends in the very file an undisturbed one writes."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from nextn.runtime.contract.errors import ExecutionError
from nextn.weights import Checkpoint, load_packed, pack_weights, packed_weights
from nextn.weights.aligned_file import take_back
from nextn.weights.pack import PackedFile
from nextn.weights.pack_journal import PackJournal
from nextn.weights.stored_tensors import StoredTensor
from tests.oracles import published_layouts as layouts
from tests.weights.folders import tiny_config, tiny_tensors, write_folder


@pytest.fixture
def folder(tmp_path):
    tensors, _ = layouts.release(tiny_tensors())
    return layouts.write_sharded(tmp_path / "source", tiny_config(), tensors)


@pytest.fixture
def reads(monkeypatch) -> Counter:
    """How often each stored tensor was read."""
    counts: Counter = Counter()
    real = StoredTensor.read

    def read(self, piece_bytes):
        counts[self.name] += 1
        return real(self, piece_bytes)

    monkeypatch.setattr(StoredTensor, "read", read)
    return counts


class Interrupt:
    """Progress that raises once the given share of the file is there."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, name: str, done: int, total: int) -> None:
        if done >= self.share * total:
            raise KeyboardInterrupt


def pack(folder: Path, out: Path, progress=None, dtype=torch.float32) -> list[dict]:
    checkpoint = Checkpoint.open(folder)
    return pack_weights(checkpoint, packed_weights(checkpoint.config, True), dtype, out, progress=progress)


def interrupted(folder: Path, out: Path, share: float = 0.6) -> Path:
    """The partial file that an interrupted packing leaves."""
    with pytest.raises(KeyboardInterrupt):
        pack(folder, out, Interrupt(share))
    assert not out.exists()
    return out.with_name("weights.partial")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
def test_continues_where_it_was(folder, tmp_path, reads, share):
    out = tmp_path / "weights"
    interrupted(folder, out, share)
    first = Counter(reads)
    reads.clear()
    entries = pack(folder, out)
    read_again = sum((first & reads).values())
    # Only the tensor in which the interrupt came is read twice; a stack of experts is one.
    assert read_again <= 2 * 2 * 6
    assert entries == pack(folder, tmp_path / "undisturbed")
    assert out.read_bytes() == (tmp_path / "undisturbed").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "undisturbed", "weights"]


def test_interrupted_twice(folder, tmp_path):
    out = tmp_path / "weights"
    interrupted(folder, out, 0.2)
    interrupted(folder, out, 0.7)
    pack(folder, out)
    pack(folder, tmp_path / "undisturbed")
    assert out.read_bytes() == (tmp_path / "undisturbed").read_bytes()


def test_damage_in_the_partial_file_is_repaired(folder, tmp_path):
    """A journal may promise what a crash of the machine took."""
    out = tmp_path / "weights"
    partial = interrupted(folder, out)
    header = 8 + int.from_bytes(partial.read_bytes()[:8], "little")
    with open(partial, "r+b") as file:
        file.seek(header)
        file.write(bytes(100_000))
    pack(folder, out)
    pack(folder, tmp_path / "undisturbed")
    assert out.read_bytes() == (tmp_path / "undisturbed").read_bytes()


@pytest.mark.parametrize("damage", ["cut", "garbage", "gone", "of another packing"])
def test_damaged_journal(folder, tmp_path, damage):
    out = tmp_path / "weights"
    interrupted(folder, out)
    journal = tmp_path / "weights.partial.journal"
    lines = journal.read_text().splitlines(keepends=True)
    if damage == "cut":
        journal.write_text("".join(lines)[:-20])
    elif damage == "garbage":
        journal.write_text("[1, 2\n\0")
    elif damage == "gone":
        journal.unlink()
    else:
        journal.write_text(json.dumps({"made_from": "0" * 64}) + "\n" + "".join(lines[1:]))
    pack(folder, out)
    pack(folder, tmp_path / "undisturbed")
    assert out.read_bytes() == (tmp_path / "undisturbed").read_bytes()
    assert not journal.exists()


@pytest.mark.parametrize("cut", [20, 1])
def test_entries_after_a_cut_line_count(tmp_path, cut):
    """An entry appended to half a line would be lost to the interruption after next, and all behind it."""
    file = tmp_path / "weights"
    journal = PackJournal(file, "source")
    for name in "ab":
        journal.add({"name": name, "sha256": "0" * 64})
    path = tmp_path / "weights.partial.journal"
    path.write_bytes(path.read_bytes()[:-cut])
    again = PackJournal(file, "source")
    assert list(again.finished) == ["a"]
    again.add({"name": "c"})
    assert list(PackJournal(file, "source").finished) == ["a", "c"]


def test_partial_file_of_another_dtype_is_not_used(folder, tmp_path):
    out = tmp_path / "weights"
    interrupted(folder, out)
    pack(folder, out, dtype=torch.bfloat16)
    pack(folder, tmp_path / "undisturbed", dtype=torch.bfloat16)
    assert out.read_bytes() == (tmp_path / "undisturbed").read_bytes()


def test_replaced_source_starts_over(tmp_path):
    """The same names and shapes with other values: nothing of the old ones may remain."""
    folder = write_folder(tmp_path / "source", tiny_config(), tiny_tensors())
    out = tmp_path / "weights"
    interrupted(folder, out)
    doubled = {
        name: 2 * tensor if tensor.is_floating_point() else tensor for name, tensor in tiny_tensors().items()
    }
    write_folder(folder, tiny_config(), doubled)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    pack(folder, out)
    pack(folder, tmp_path / "undisturbed")
    assert out.read_bytes() == (tmp_path / "undisturbed").read_bytes()


def test_constants_are_always_this_runs(folder, tmp_path):
    """They come from the config, which may have been edited meanwhile."""
    checkpoint = Checkpoint.open(folder)
    packed, out = packed_weights(checkpoint.config, True), tmp_path / "weights"

    def pack_with(value: float, progress=None) -> None:
        extra = {"frequencies": torch.full((4,), value)}
        pack_weights(checkpoint, packed, torch.float32, out, extra=extra, progress=progress)

    with pytest.raises(KeyboardInterrupt):
        pack_with(1.0, Interrupt(1.0))
    pack_with(2.0)
    assert torch.equal(load_packed(out)["frequencies"], torch.full((4,), 2.0))


KILLED_PACK = """
import sys, time, torch
from pathlib import Path
from nextn.weights import Checkpoint, pack_weights, packed_weights
checkpoint = Checkpoint.open(sys.argv[1])
def slow(name, done, total):
    print(done, flush=True)
    time.sleep(0.002)
packed = packed_weights(checkpoint.config, True)
pack_weights(checkpoint, packed, torch.float32, Path(sys.argv[2]), progress=slow)
"""


def test_killed_process(folder, tmp_path):
    out = tmp_path / "weights"
    command = [sys.executable, "-c", KILLED_PACK, str(folder), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 400_000:
            pass
        process.send_signal(signal.SIGKILL)
    assert not out.exists() and (tmp_path / "weights.partial").exists()
    pack(folder, out)
    pack(folder, tmp_path / "undisturbed")
    assert out.read_bytes() == (tmp_path / "undisturbed").read_bytes()


def test_too_small_a_disk_is_noticed_before_anything_is_written(folder, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(ExecutionError, match="not enough disk space") as caught:
        pack(folder, tmp_path / "weights")
    assert caught.value.found == "1000 bytes free"
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_what_is_written_already_counts_as_space(folder, tmp_path, monkeypatch):
    out = tmp_path / "weights"
    partial = interrupted(folder, out, 0.9)
    missing = partial.stat().st_size - partial.stat().st_blocks * 512
    usage = type("Usage", (), {"free": missing + 4096})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    pack(folder, out)
    assert out.exists()


@pytest.mark.parametrize("share", [None, 0.0, 0.6, 1.0], ids=str)
def test_hashes_taken_while_writing_are_the_files(folder, tmp_path, share):
    """Gaps of both alignments, tensors found written and tensors written now are all in the body's hash."""
    checkpoint, out = Checkpoint.open(folder), tmp_path / "weights"
    packed, extra = packed_weights(checkpoint.config, True), {"large": torch.ones(600_000)}
    told: list[PackedFile] = []

    def finished(file: PackedFile) -> None:
        assert out.exists() and (tmp_path / "weights.partial.journal").exists()
        told.append(file)

    if share is not None:
        with pytest.raises(KeyboardInterrupt):
            pack_weights(checkpoint, packed, torch.float32, out, extra, Interrupt(share), finished=finished)
    entries = pack_weights(checkpoint, packed, torch.float32, out, extra, finished=finished)
    content = out.read_bytes()
    header, body = content[: told[0].header_bytes], content[told[0].header_bytes :]
    assert len(header) == 8 + int.from_bytes(header[:8], "little") and len(told) == 1
    assert told[0] == PackedFile(
        entries, len(content), len(header), sha256(header).hexdigest(), sha256(body).hexdigest()
    )
    assert entries[-1]["offset"] % (2 * 1024 * 1024) == 0
    assert not (tmp_path / "weights.partial.journal").exists()


def test_finished_file_without_a_record_is_not_packed_again(folder, tmp_path, reads):
    """Killed while its record is written: the journal still vouches for it."""
    checkpoint, out = Checkpoint.open(folder), tmp_path / "weights"
    packed = packed_weights(checkpoint.config, True)

    def killed(file: PackedFile) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_weights(checkpoint, packed, torch.float32, out, finished=killed)
    content = out.read_bytes()
    reads.clear()
    take_back(out)
    pack_weights(checkpoint, packed, torch.float32, out)
    assert not reads and out.read_bytes() == content
