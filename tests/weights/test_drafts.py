"""Which draft a checkpoint carries, decided by its tensors: each kind has one sentence of its own."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nextn.runtime.contract.errors import CheckpointError, ExitCode
from nextn.weights import Checkpoint, load_weights, pack_weights, packed_weights
from tests.oracles import published_layouts as layouts
from tests.weights.folders import tiny_config, tiny_tensors, without_nextn, write_folder, write_shards


def draft_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith("mtp.")}


def refused_to_draft(checkpoint: Checkpoint) -> CheckpointError:
    """The one sentence; plain decoding must remain."""
    assert not checkpoint.has_nextn
    checkpoint.require_nextn(0)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.require_nextn(1)
    assert caught.value.exit_code == ExitCode.CHECKPOINT
    assert "\n" not in str(caught.value)
    assert "--speculative-num-steps 0" in caught.value.message
    assert "--speculative-draft-model-path" in caught.value.message
    return caught.value


def plain_weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return load_weights(checkpoint, packed_weights(checkpoint.config, False), torch.float32)


@pytest.mark.parametrize("blocks", [1, 3])
def test_dspark_draft(tmp_path, original, blocks):
    """The 0731 release keeps `num_nextn_predict_layers` 1 but carries another kind of draft.

    https://github.com/ggml-org/llama.cpp/pull/25784, https://github.com/vllm-project/vllm/pull/41834
    """
    tensors = without_nextn(tiny_tensors())
    for block in range(blocks):
        tensors[f"mtp.{block}.main_norm.weight"] = torch.ones(64)
        tensors[f"mtp.{block}.markov_head.weight"] = torch.ones(64, 64)
    config = tiny_config() | {"compress_ratios": [0, 4, 128, 0, 0, 0], "dspark_block_size": 5}
    checkpoint = Checkpoint.open(write_folder(tmp_path, config, tensors))
    error = refused_to_draft(checkpoint)
    assert "DSpark" in error.message
    assert error.key == "mtp.0.main_norm.weight"
    assert any("DSpark" in warning for warning in checkpoint.warnings)
    expected = plain_weights(Checkpoint.open(original))
    for name, weight in plain_weights(checkpoint).items():
        assert torch.equal(weight, expected[name])


def test_count_of_a_config_decides_nothing(tmp_path):
    """A DSpark release may count its blocks; and one NextN layer is one, whatever the count."""
    counted = tiny_config() | {"num_nextn_predict_layers": 3}
    blocks = {f"mtp.{block}.markov_head.weight": torch.ones(64, 64) for block in range(3)}
    dspark = Checkpoint.open(
        write_folder(tmp_path / "dspark", counted, without_nextn(tiny_tensors()) | blocks)
    )
    assert "DSpark" in refused_to_draft(dspark).message
    single = Checkpoint.open(write_folder(tmp_path / "single", counted, tiny_tensors()))
    single.require_nextn(3)
    assert "counts 3 NextN layers" in single.warnings[0]


def test_second_nextn_layer(tmp_path):
    tensors = tiny_tensors()
    tensors |= {name.replace("mtp.0", "mtp.1"): t.clone() for name, t in draft_of(tensors).items()}
    error = refused_to_draft(Checkpoint.open(write_folder(tmp_path, tiny_config(), tensors)))
    assert "more than one NextN layer" in error.message
    assert error.key.startswith("mtp.1.")


def test_mtp_block_without_enorm(tmp_path):
    tensors = tiny_tensors()
    del tensors["mtp.0.enorm.weight"]
    error = refused_to_draft(Checkpoint.open(write_folder(tmp_path, tiny_config(), tensors)))
    assert "not a NextN layer: it has no mtp.0.enorm.weight" in error.message


def test_resave_that_lost_its_draft(tmp_path):
    """Exporters drop `mtp.*` and keep the config's count.

    https://github.com/NVIDIA/Model-Optimizer/issues/2427, https://github.com/youssofal/MTPLX/issues/216
    """
    dropped = Checkpoint.open(write_folder(tmp_path, tiny_config(), without_nextn(tiny_tensors())))
    assert "no mtp.* tensors" in refused_to_draft(dropped).message
    assert any("mtp" in warning for warning in dropped.warnings)


def test_draft_that_config_does_not_count(tmp_path):
    uncounted = tiny_config() | {"num_nextn_predict_layers": 0}
    kept = Checkpoint.open(write_folder(tmp_path, uncounted, tiny_tensors()))
    assert kept.has_nextn
    kept.require_nextn(8)


@pytest.mark.parametrize("name", ["layers.1.engram.table.weight", "vision.blocks.0.attn.qkv.weight"])
def test_v41_is_another_architecture(tmp_path, name):
    """Its tensors tell before a config that could be an edited one of V4."""
    tensors = tiny_tensors() | {name: torch.ones(4, 4)}
    with pytest.raises(CheckpointError, match="DeepSeek-V4.1") as caught:
        Checkpoint.open(write_folder(tmp_path, tiny_config(), tensors))
    assert "use a checkpoint of DeepSeek-V4 Flash or Pro" in caught.value.message
    assert caught.value.key == name


@pytest.fixture
def target(tmp_path):
    return write_folder(tmp_path / "target", tiny_config(), without_nextn(tiny_tensors()))


@pytest.mark.parametrize("whole", [True, False], ids=["a whole checkpoint", "the draft alone"])
def test_draft_from_another_folder(tmp_path, target, original, whole):
    draft = original if whole else write_folder(tmp_path / "d", {}, draft_of(tiny_tensors()))
    (tmp_path / "d" / "config.json").unlink(missing_ok=True)
    checkpoint = Checkpoint.open(target, draft)
    assert checkpoint.has_nextn
    checkpoint.require_nextn(3)
    packed = packed_weights(checkpoint.config, True)
    expected = load_weights(Checkpoint.open(original), packed, torch.float32)
    for name, weight in load_weights(checkpoint, packed, torch.float32).items():
        assert torch.equal(weight, expected[name]), name
    entries = pack_weights(checkpoint, packed, torch.float32, tmp_path / "weights")
    files = {name: file for entry in entries for file, name, _ in entry["source"]}
    assert files["mtp.0.e_proj.weight"] == "draft/model.safetensors"
    assert files["norm.weight"] == "model.safetensors"
    assert ("draft/model.safetensors", "mtp.0.e_proj.weight") in [
        record[:2] for record in checkpoint.source_records("mtp.0.e_proj.weight")
    ]


def test_draft_folder_wins_over_the_checkpoints_own(tmp_path, original):
    other = {name: 2 * tensor for name, tensor in draft_of(tiny_tensors()).items()}
    checkpoint = Checkpoint.open(original, write_folder(tmp_path / "other", tiny_config(), other))
    weights = load_weights(checkpoint, packed_weights(checkpoint.config, True), torch.float32)
    assert torch.equal(weights["mtp.0.e_proj.weight"], other["mtp.0.e_proj.weight"])
    assert torch.equal(weights["embed.weight"], tiny_tensors()["embed.weight"])


def test_quantised_draft_for_a_plain_target(tmp_path, target):
    quantised, twin, description = layouts.modelslim(tiny_tensors())
    folder = layouts.write_modelslim(tmp_path / "w8a8", tiny_config(), quantised, description)
    checkpoint = Checkpoint.open(target, folder)
    weights = load_weights(checkpoint, packed_weights(checkpoint.config, True), torch.float32)
    assert torch.equal(weights["mtp.0.attn.wq_a.weight"], twin["mtp.0.attn.wq_a.weight"])


def test_draft_folder_without_a_draft(tmp_path, original):
    folder = write_folder(tmp_path / "none", tiny_config(), without_nextn(tiny_tensors()))
    with pytest.raises(CheckpointError, match="no mtp") as caught:
        Checkpoint.open(original, folder)
    assert caught.value.file == str(folder)


def test_draft_of_another_width(tmp_path, target):
    draft = draft_of(tiny_tensors())
    draft["mtp.0.e_proj.weight"] = torch.zeros(32, 32)
    folder = write_folder(tmp_path / "narrow", tiny_config(), draft)
    with pytest.raises(CheckpointError, match="wrong tensor shape") as caught:
        Checkpoint.open(target, folder)
    assert caught.value.key == "mtp.0.e_proj.weight"


def test_draft_folder_that_is_not_there(tmp_path, target):
    with pytest.raises(CheckpointError, match="no such checkpoint folder"):
        Checkpoint.open(target, tmp_path / "absent")


@pytest.mark.parametrize(
    ("key", "value"), [("rms_norm_eps", 0.1), ("rope_theta", 123.0), ("num_experts_per_tok", 1)]
)
def test_draft_of_another_architecture(tmp_path, target, key, value):
    """Its tensors fit, but the graphs would compute with the Target's values."""
    folder = write_folder(tmp_path / "other", tiny_config() | {key: value}, draft_of(tiny_tensors()))
    with pytest.raises(CheckpointError, match="made for another Target") as caught:
        Checkpoint.open(target, folder)
    assert (caught.value.key, caught.value.file) == (key, str(folder / "config.json"))


def test_draft_folder_with_the_drafts_shard_alone(tmp_path, target):
    """What a user fetches of a release is its index and the shard with `mtp.*`."""
    tensors = tiny_tensors()
    shards = {"one.safetensors": without_nextn(tensors), "two.safetensors": draft_of(tensors)}
    folder = write_shards(tmp_path / "release", tiny_config(), shards)
    (folder / "one.safetensors").unlink()
    assert Checkpoint.open(target, folder).has_nextn


def test_draft_folder_with_a_draft_that_its_index_omits(tmp_path, target):
    """Again without the shards that nothing is wanted of."""
    tensors = tiny_tensors()
    shards = {"one.safetensors": without_nextn(tensors), "mtp.safetensors": draft_of(tensors)}
    folder = write_shards(tmp_path / "release", tiny_config(), shards, unlisted=tuple(draft_of(tensors)))
    assert Checkpoint.open(target, folder).has_nextn
    (folder / "one.safetensors").unlink()
    assert Checkpoint.open(target, folder).has_nextn
    (folder / "mtp.safetensors").unlink()
    with pytest.raises(CheckpointError, match="missing shard"):
        Checkpoint.open(target, folder)


def test_records_tell_a_draft_folder_that_holds_the_target(tmp_path):
    tensors = tiny_tensors()
    draft = write_folder(tmp_path, tiny_config(), tensors)
    target = write_folder(tmp_path / "target", tiny_config(), without_nextn(tensors))
    for checkpoint in (Checkpoint.open(target, draft), Checkpoint.open(draft, draft)):
        files = [checkpoint.source_records(name)[0][0] for name in ("norm.weight", "mtp.0.enorm.weight")]
        assert files == ["model.safetensors", "draft/model.safetensors"]


def test_damaged_draft_that_is_not_needed(tmp_path, original):
    """Plain decoding uses nothing of it."""
    tensors = tiny_tensors()
    del tensors["mtp.0.hnorm.weight"]
    checkpoint = Checkpoint.open(write_folder(tmp_path, tiny_config(), tensors), draft_needed=False)
    error = refused_to_draft(checkpoint)
    assert "the NextN layer is damaged: missing tensor" in error.message
    assert (error.key, error.file) == ("mtp.0.hnorm.weight", str(tmp_path / "model.safetensors"))
    assert (error.expected, error.found) == ([64], "nothing")
    (warning,) = checkpoint.warnings
    assert warning == (
        "the NextN layer is damaged: missing tensor "
        f"(file {tmp_path / 'model.safetensors'}, key mtp.0.hnorm.weight, expected [64], found nothing); "
        "the Target is used alone"
    )
    expected = plain_weights(Checkpoint.open(original))
    for name, weight in plain_weights(checkpoint).items():
        assert torch.equal(weight, expected[name])


def absent(file: Path) -> None:
    file.unlink()


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def no_file(file: Path) -> None:
    file.unlink()
    file.mkdir()


def lacking_a_listed_tensor(file: Path) -> None:
    tensors = load_file(file)
    del tensors["mtp.0.e_proj.weight"]
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (absent, "missing shard"),
        (truncated, "truncated file"),
        (empty, "truncated file"),
        (no_file, "cannot read tensors"),
        (lacking_a_listed_tensor, "tensor missing from its shard"),
    ],
)
def test_damaged_shard_of_the_draft_alone(tmp_path, original, damage, message):
    """It is an error for who drafts with it, and a warning for who does not."""
    tensors = tiny_tensors()
    shards = {"one.safetensors": without_nextn(tensors), "two.safetensors": draft_of(tensors)}
    folder = write_shards(tmp_path, tiny_config(), shards)
    damage(folder / "two.safetensors")
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint.open(folder)
    assert "two.safetensors" in str(caught.value)

    alone = Checkpoint.open(folder, draft_needed=False)
    assert message in refused_to_draft(alone).message
    assert len(alone.warnings) == 1 and str(caught.value) in alone.warnings[0]
    expected = plain_weights(Checkpoint.open(original))
    for name, weight in plain_weights(alone).items():
        assert torch.equal(weight, expected[name])

    other = Checkpoint.open(folder, original)
    assert other.has_nextn
    assert len(other.warnings) == 1 and str(caught.value) in other.warnings[0]
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(original, folder)


def test_damaged_shard_that_holds_more_than_the_draft(tmp_path):
    tensors = tiny_tensors()
    shards = {"one.safetensors": without_nextn(tensors), "two.safetensors": draft_of(tensors)}
    shards["two.safetensors"]["norm.weight"] = shards["one.safetensors"].pop("norm.weight")
    folder = write_shards(tmp_path, tiny_config(), shards)
    empty(folder / "two.safetensors")
    with pytest.raises(CheckpointError, match="truncated file"):
        Checkpoint.open(folder, draft_needed=False)
