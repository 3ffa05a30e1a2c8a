"""A draft that repeats the Target's embedding and LM head: equal copies are dropped, others refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights import Checkpoint, pack_weights, packed_weights
from tests.weights.folders import tiny_config, tiny_tensors, without_nextn, write_folder

COPIES = {
    "mtp.0.emb.tok_emb.weight": "embed.weight",
    "mtp.0.head.weight": "head.weight",
    "model.mtp.0.head.weight": "head.weight",
}


def pack(checkpoint: Checkpoint, out: Path, *, with_nextn: bool = True) -> bytes:
    pack_weights(checkpoint, packed_weights(checkpoint.config, with_nextn), torch.float32, out)
    return out.read_bytes()


def with_copy(folder: Path, name: str, tensor: Tensor) -> Path:
    return write_folder(folder, tiny_config(), tiny_tensors() | {name: tensor})


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("change", ["a value", "the last value", "the shape"])
def test_another_embedding_or_head_is_refused(tmp_path: Path, name: str, change: str) -> None:
    """https://github.com/vllm-project/vllm/issues/38493: drafting with the wrong one costs acceptance, and
    nothing says so (also https://github.com/vllm-project/vllm-ascend/pull/2790)."""
    tensor = tiny_tensors()[COPIES[name]].clone()
    if change == "the shape":
        tensor = tensor[:-1].contiguous()
    else:
        tensor.view(-1)[-1 if change == "the last value" else 0] += 1
    checkpoint = Checkpoint.open(with_copy(tmp_path / "folder", name, tensor))
    with pytest.raises(CheckpointError, match="shares it with the Target") as caught:
        pack(checkpoint, tmp_path / "packed")
    assert caught.value.key == name
    assert not list(tmp_path.glob("packed*"))


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_copies_are_dropped(tmp_path: Path, original: Path, name: str, dtype: torch.dtype) -> None:
    """Also one of fewer bits, if its values are those of the Target in that dtype."""
    folder = with_copy(tmp_path / "folder", name, tiny_tensors()[COPIES[name]].to(dtype))
    assert pack(Checkpoint.open(folder), tmp_path / "a") == pack(Checkpoint.open(original), tmp_path / "b")


def test_the_target_alone_has_no_use_for_them(tmp_path: Path) -> None:
    folder = with_copy(tmp_path / "folder", "mtp.0.head.weight", torch.zeros(3))
    assert pack(Checkpoint.open(folder), tmp_path / "packed", with_nextn=False)


def test_a_draft_folder_is_held_against_the_target(tmp_path: Path) -> None:
    target = write_folder(tmp_path / "target", tiny_config(), without_nextn(tiny_tensors()))
    head = tiny_tensors()["head.weight"] * 2
    draft = with_copy(tmp_path / "draft", "mtp.0.head.weight", head)
    checkpoint = Checkpoint.open(target, draft)
    with pytest.raises(CheckpointError, match="shares it with the Target") as caught:
        pack(checkpoint, tmp_path / "packed")
    assert caught.value.file == str(draft / "model.safetensors")
