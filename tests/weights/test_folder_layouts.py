"""Folders as downloaders, caches, overlays and file systems really lay them out."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint import Checkpoint
from tests.weights.folders import (
    raw_bytes,
    tiny_config,
    tiny_tensors,
    without_nextn,
    write_folder,
    write_index,
    write_shards,
)

REVISION = "0123456789abcdef0123456789abcdef01234567"


def stored_bytes(checkpoint: Checkpoint, name: str) -> bytes:
    [stored] = checkpoint.tensors[name].stored
    return b"".join(stored.read(1 << 20))


def test_the_index_decides_between_copies(tmp_path: Path) -> None:
    """https://github.com/JustVugg/colibri/issues/1479: an overlay replaces a tensor in a file of its own."""
    base = tiny_tensors()
    overlay = {"norm.weight": base["norm.weight"] + 1}
    folder = write_shards(tmp_path, tiny_config(), {"base.safetensors": base, "overlay.safetensors": overlay})
    checkpoint = Checkpoint.open(folder)
    assert stored_bytes(checkpoint, "norm.weight") == raw_bytes(overlay["norm.weight"])
    assert checkpoint.warnings == ()


def test_equal_copies_that_the_index_omits_are_one_tensor(tmp_path: Path) -> None:
    base = tiny_tensors()
    copy = {"norm.weight": base["norm.weight"].clone(), "embed.weight": base.pop("embed.weight")}
    shards = {"a.safetensors": base, "b.safetensors": copy}
    folder = write_shards(tmp_path, tiny_config(), shards, unlisted=("norm.weight",))
    assert stored_bytes(Checkpoint.open(folder), "norm.weight") == raw_bytes(base["norm.weight"])


def test_different_copies_that_the_index_omits_are_refused(tmp_path: Path) -> None:
    base = tiny_tensors()
    copy = {"norm.weight": base["norm.weight"] + 1, "embed.weight": base.pop("embed.weight")}
    shards = {"a.safetensors": base, "b.safetensors": copy}
    folder = write_shards(tmp_path, tiny_config(), shards, unlisted=("norm.weight",))
    with pytest.raises(CheckpointError, match="tensor in two shards") as caught:
        Checkpoint.open(folder)
    assert caught.value.key == "norm.weight"


def hub(root: Path, source: Path, inside: str = "") -> Path:
    """A Hugging Face cache of one repository; its files lie in the folder `inside` of it. The snapshot."""
    repository = root / "models--someone--tiny"
    snapshot = repository / "snapshots" / REVISION / inside
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in source.iterdir():
        name = hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, repository / "blobs" / name)
        up = "/".join([".."] * (3 if inside else 2))
        (snapshot / file.name).symlink_to(f"{up}/blobs/{name}")
    return snapshot


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "original", tiny_config(), tiny_tensors())


def test_a_folder_inside_a_snapshot(tmp_path: Path, original: Path) -> None:
    """https://github.com/microsoft/onnxruntime/issues/27353: repositories keep variants in folders."""
    assert Checkpoint.open(hub(tmp_path / "hub", original, inside="bf16")).has_nextn


@pytest.mark.parametrize("linked", ["blobs", "repository", "hub"])
def test_a_cache_on_another_disk(tmp_path: Path, original: Path, linked: str) -> None:
    """Users move what is large to another disk and leave a link in its place."""
    snapshot = hub(tmp_path / "hub", original, inside="bf16")
    repository = tmp_path / "hub" / "models--someone--tiny"
    moved = {"blobs": repository / "blobs", "repository": repository, "hub": tmp_path / "hub"}[linked]
    (tmp_path / "disk").mkdir()
    moved.rename(tmp_path / "disk" / "large")
    moved.symlink_to(tmp_path / "disk" / "large")
    assert Checkpoint.open(snapshot).has_nextn


@pytest.mark.parametrize("through", ["blobs", "snapshots"])
@pytest.mark.parametrize("blobs_are_linked", [False, True])
def test_a_folder_of_links_into_the_cache(
    tmp_path: Path, original: Path, through: str, blobs_are_linked: bool
) -> None:
    """`local_dir` of the hub's client, once made of links to blobs; others link the snapshot's files."""
    snapshot = hub(tmp_path / "hub", original)
    local = tmp_path / "local"
    local.mkdir()
    for link in snapshot.iterdir():
        (local / link.name).symlink_to(link.resolve() if through == "blobs" else link)
    if blobs_are_linked:
        blobs = snapshot.parents[1] / "blobs"
        blobs.rename(tmp_path / "elsewhere")
        blobs.symlink_to(tmp_path / "elsewhere")
    assert Checkpoint.open(local).has_nextn


@pytest.mark.parametrize(
    "place", ["models--a--b/blobs/secret.json", "models--a--b/blobs/" + "a" * 40 + "/f", "blobs/" + "a" * 64]
)
def test_links_that_only_resemble_the_cache(tmp_path: Path, original: Path, place: str) -> None:
    """Blobs are named by a hash of what is in them, so that only who knows the content can name one."""
    target = tmp_path / "elsewhere" / place
    target.parent.mkdir(parents=True)
    (original / "config.json").rename(target)
    (original / "config.json").symlink_to(target)
    with pytest.raises(CheckpointError, match="link leaves the checkpoint"):
        Checkpoint.open(original)


def test_a_blob_that_is_a_link_out_of_the_cache(tmp_path: Path, original: Path) -> None:
    snapshot = hub(tmp_path / "hub", original)
    blob = (snapshot / "config.json").resolve()
    blob.rename(tmp_path / "secret")
    blob.symlink_to(tmp_path / "secret")
    local = tmp_path / "local"
    local.mkdir()
    for link in snapshot.iterdir():
        (local / link.name).symlink_to(link.parent / link.readlink())
    for folder in (snapshot, local):
        with pytest.raises(CheckpointError, match="link leaves the checkpoint"):
            Checkpoint.open(folder)


APPLE_DOUBLE = bytes.fromhex("00051607 00020000") + b"Mac OS X        "


@pytest.mark.parametrize("weights", ["model.safetensors", "weights.safetensors"])
@pytest.mark.parametrize("content", ["resource fork", "tensors"])
def test_hidden_files_are_no_part_of_a_checkpoint(tmp_path: Path, weights: str, content: str) -> None:
    """https://github.com/jundot/omlx/issues/3679: macOS writes `._NAME` beside each file on foreign disks."""
    folder = write_folder(tmp_path, tiny_config(), without_nextn(tiny_tensors()))
    (folder / "model.safetensors").rename(folder / weights)
    hidden = folder / f"._{weights}"
    if content == "tensors":
        save_file({"mtp.0.norm.weight": tiny_tensors()["mtp.0.norm.weight"]}, hidden)
    else:
        hidden.write_bytes(APPLE_DOUBLE)
    (folder / "._other.safetensors.index.json").write_bytes(APPLE_DOUBLE)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.draft.kind == "none"
    assert not any("._" in warning for warning in checkpoint.warnings)


@pytest.mark.parametrize("spelling", ["./{}", "././{}", ".//{}"])
def test_a_name_of_an_index_in_another_spelling(tmp_path: Path, spelling: str) -> None:
    """`./model-1.safetensors` is the file model-1.safetensors."""
    tensors = tiny_tensors()
    folder = write_shards(tmp_path, tiny_config(), {"model-1.safetensors": tensors})
    write_index(folder, {name: spelling.format("model-1.safetensors") for name in tensors})
    assert Checkpoint.open(folder).warnings == ()
