"""Opening a checkpoint: what is there, what is missing, and which draft it carries."""

import json

import pytest
import torch
from safetensors.torch import save_file

from nextn.runtime.contract.errors import CheckpointError, ExitCode
from nextn.weights import Checkpoint, load_weights, packed_weights
from tests.weights.folders import (
    tiny_config,
    tiny_tensors,
    without_nextn,
    write_folder,
    write_index,
    write_shards,
)


def refused(folder) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.CHECKPOINT
    assert caught.value.file is not None
    return caught.value


def split_tensors() -> tuple[dict, dict]:
    """Two shards: NextN in the second, as in the release."""
    tensors = tiny_tensors()
    target = without_nextn(tensors)
    return target, {name: tensor for name, tensor in tensors.items() if name not in target}


@pytest.mark.parametrize(
    "name",
    [
        "embed.weight",
        "hc_head_scale",
        "layers.0.ffn.gate.tid2eid",
        "layers.1.attn.indexer.compressor.wgate.weight",
        "layers.2.ffn.experts.5.w3.weight",
        "mtp.0.hnorm.weight",
        "mtp.0.ffn.gate.bias",
    ],
)
def test_missing_tensor_is_named(tmp_path, name):
    """A draft that is half there must not load.

    https://github.com/vllm-project/vllm/issues/52111
    """
    tensors = tiny_tensors()
    del tensors[name]
    error = refused(write_folder(tmp_path, tiny_config(), tensors))
    assert error.message == "missing tensor"
    assert error.key == name
    assert error.file == str(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        "layers.3.attn.wq_a.weight",
        "layers.0.attn.compressor.ape",
        "layers.1.ffn.gate.tid2eid",
        "mtp.0.ffn.gate.tid2eid",
        "rotary.inv_freq",
        "model.layers.0.self_attn.v_proj.weight",
    ],
)
def test_unexpected_tensor_is_named(tmp_path, name):
    error = refused(write_folder(tmp_path, tiny_config(), tiny_tensors() | {name: torch.zeros(2)}))
    assert (error.message, error.key, error.found) == ("unexpected tensor", name, "F32 [2]")
    assert error.file == str(tmp_path / "model.safetensors")


def test_wrong_shape_is_named_with_its_shard(tmp_path):
    target, draft = split_tensors()
    draft["mtp.0.e_proj.weight"] = torch.zeros(64, 128)
    shards = {"one.safetensors": target, "two.safetensors": draft}
    error = refused(write_shards(tmp_path, tiny_config(), shards))
    assert (error.message, error.key) == ("wrong tensor shape", "mtp.0.e_proj.weight")
    assert error.file == str(tmp_path / "two.safetensors")
    assert (error.expected, error.found) == ([64, 64], [64, 128])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("norm.weight", torch.int64), ("layers.0.ffn.gate.tid2eid", torch.float32)],
)
def test_wrong_kind_of_number_is_named(tmp_path, name, dtype):
    tensors = tiny_tensors()
    tensors[name] = tensors[name].to(dtype)
    error = refused(write_folder(tmp_path, tiny_config(), tensors))
    assert (error.message, error.key) == ("wrong tensor dtype", name)


def test_config_of_another_model_names_the_first_difference(tmp_path):
    config = tiny_config() | {"compress_ratios": [0, 128, 4, 0]}
    error = refused(write_folder(tmp_path, config, tiny_tensors()))
    assert error.key.startswith("layers.1.attn.")


def test_more_experts_than_any_checkpoint_stop_at_the_first_missing(tmp_path):
    config = tiny_config() | {"n_routed_experts": 8192}
    error = refused(write_folder(tmp_path, config, tiny_tensors()))
    assert error.key == "layers.0.ffn.gate.weight"


def test_shards_load_like_one_file(original, tmp_path):
    target, draft = split_tensors()
    shards = {"model-00001-of-00002.safetensors": target, "model-00002-of-00002.safetensors": draft}
    folder = write_shards(tmp_path, tiny_config(), shards)
    checkpoint, single = Checkpoint.open(folder), Checkpoint.open(original)
    assert checkpoint.has_nextn and checkpoint.warnings == ()
    packed = packed_weights(checkpoint.config, with_nextn=True)
    weights = load_weights(checkpoint, packed, torch.float32)
    for name, weight in load_weights(single, packed, torch.float32).items():
        assert torch.equal(weights[name], weight), name


def test_index_that_omits_the_draft(tmp_path):
    """The shard's header holds the draft, so it is there, whatever the index says.

    https://github.com/osaurus-ai/vmlx-swift/issues/388
    """
    target, draft = split_tensors()
    shards = {"one.safetensors": target | draft}
    folder = write_shards(tmp_path, tiny_config(), shards, unlisted=tuple(draft))
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.has_nextn
    assert len(checkpoint.warnings) == 1
    assert f"{len(draft)} tensors" in checkpoint.warnings[0]
    assert "model.safetensors.index.json" in checkpoint.warnings[0]


@pytest.mark.parametrize("part", ["draft", "target"])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_index_that_omits_a_whole_file(original, tmp_path, part, prefix):
    """Tensors that exist are loaded, with a warning.

    https://github.com/jundot/omlx/issues/2062
    """
    parts = dict(zip(("target", "draft"), split_tensors(), strict=True))
    omitted = {prefix + name: tensor for name, tensor in parts.pop(part).items()}
    listed = next(iter(parts.values()))
    folder = write_shards(tmp_path, tiny_config(), {"one.safetensors": listed, "two.safetensors": omitted})
    write_index(folder, {name: "one.safetensors" for name in listed})
    checkpoint, single = Checkpoint.open(folder), Checkpoint.open(original)
    assert len(checkpoint.warnings) == 1
    assert "two.safetensors: not part of model.safetensors.index.json" in checkpoint.warnings[0]
    packed = packed_weights(checkpoint.config, with_nextn=True)
    weights = load_weights(checkpoint, packed, torch.float32)
    for name, weight in load_weights(single, packed, torch.float32).items():
        assert torch.equal(weights[name], weight), name


def test_draft_beside_a_single_file(tmp_path):
    target, draft = split_tensors()
    folder = write_shards(tmp_path, tiny_config(), {"model.safetensors": target, "mtp.safetensors": draft})
    (folder / "model.safetensors.index.json").unlink()
    assert Checkpoint.open(folder).has_nextn


@pytest.mark.parametrize("name", ["norm.weight", "model.norm.weight", "base.layers.0.lora_A.weight"])
def test_file_outside_the_index_with_other_things(tmp_path, name):
    """Copies and what is none of the model's are not read, but mentioned."""
    target, draft = split_tensors()
    folder = write_shards(tmp_path, tiny_config(), {"one.safetensors": target | draft})
    save_file({name: torch.ones(64)}, folder / "two.safetensors")
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.has_nextn
    assert len(checkpoint.warnings) == 1 and "two.safetensors" in checkpoint.warnings[0]
    assert "not read" in checkpoint.warnings[0]


def test_draft_in_a_file_that_cannot_be_taken(tmp_path):
    """The sentence about the draft knows of it."""
    target, draft = split_tensors()
    shards = {
        "one.safetensors": target,
        "mtp.safetensors": draft | {"norm.weight": target["norm.weight"] + 1},
    }
    folder = write_shards(tmp_path, tiny_config(), shards)
    write_index(folder, {name: "one.safetensors" for name in target})
    checkpoint = Checkpoint.open(folder)
    assert not checkpoint.has_nextn
    assert "mtp.safetensors" in checkpoint.draft.found and "no mtp" not in checkpoint.draft.found
    assert any("it repeats norm.weight" in warning for warning in checkpoint.warnings)
    (folder / "mtp.safetensors").write_bytes(b"short")
    checkpoint = Checkpoint.open(folder)
    assert "mtp.safetensors" in checkpoint.draft.found and "cannot be read" in checkpoint.draft.found
    assert any("truncated file" in warning for warning in checkpoint.warnings)


def test_index_naming_a_missing_shard(tmp_path):
    """https://github.com/sgl-project/sglang/issues/32279"""
    target, draft = split_tensors()
    folder = write_shards(tmp_path, tiny_config(), {"one.safetensors": target, "two.safetensors": draft})
    (folder / "two.safetensors").unlink()
    error = refused(folder)
    assert error.message == "missing shard"
    assert error.expected == "two.safetensors"


def test_stale_index_naming_a_missing_tensor(tmp_path):
    """https://github.com/Blaizzy/mlx-vlm/issues/1827"""
    tensors = tiny_tensors()
    folder = write_shards(tmp_path, tiny_config(), {"one.safetensors": tensors})
    write_index(folder, {name: "one.safetensors" for name in [*tensors, "old.weight"]})
    error = refused(folder)
    assert (error.message, error.key) == ("tensor missing from its shard", "old.weight")
    assert error.file == str(folder / "one.safetensors")


def test_several_files_without_an_index(tmp_path):
    target, draft = split_tensors()
    folder = write_shards(tmp_path, tiny_config(), {"a.safetensors": target, "b.safetensors": draft})
    (folder / "model.safetensors.index.json").unlink()
    assert refused(folder).found == "2 safetensors files"


def test_index_under_another_name(tmp_path):
    folder = write_shards(tmp_path, tiny_config(), {"quant_model_weights.safetensors": tiny_tensors()})
    index = folder / "model.safetensors.index.json"
    index.rename(folder / "quant_model_weights.safetensors.index.json")
    assert Checkpoint.open(folder).has_nextn
    (folder / "other.safetensors.index.json").write_text("{}")
    assert refused(folder).message == "several index files"


def test_no_tensors_at_all(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    assert refused(tmp_path).found == "no safetensors file"


def test_no_folder(tmp_path):
    assert refused(tmp_path / "absent").message == "no such checkpoint folder"


def test_hugging_face_cache_links_are_followed(tmp_path, original):
    """The cache fills `snapshots/<revision>/` with links into `blobs/` beside it."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abcd"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    texts = {"tokenizer.json": b"{}", "generation_config.json": b"{}"}
    for place, name in enumerate(["config.json", "model.safetensors", *texts]):
        (blobs / f"hash{place}").write_bytes(texts.get(name) or (original / name).read_bytes())
        (snapshot / name).symlink_to(f"../../blobs/hash{place}")
    assert Checkpoint.open(snapshot).has_nextn
