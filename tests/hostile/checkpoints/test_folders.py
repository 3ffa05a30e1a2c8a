"""Hostile checkpoint folders: links, indexes and configs that try to lead the reader elsewhere."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nextn.runtime.contract.errors import CheckpointError, ExitCode
from nextn.weights import Checkpoint
from tests.hostile.checkpoints.crafted import two_tensors, write_header
from tests.weights.folders import tiny_config, tiny_tensors, write_folder, write_index, write_shards


@pytest.fixture
def folder(tmp_path):
    return write_shards(tmp_path / "checkpoint", tiny_config(), {"one.safetensors": tiny_tensors()})


def refused(folder) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    assert caught.value.exit_code == ExitCode.CHECKPOINT
    assert "\n" not in str(caught.value)
    return caught.value


def test_link_that_leaves_the_folder(folder, tmp_path):
    (folder / "one.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "one.safetensors").symlink_to(tmp_path / "outside.safetensors")
    error = refused(folder)
    assert error.message == "link leaves the checkpoint"
    assert error.file == str(folder / "one.safetensors")


FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
    "quant_model_description.json",
]


@pytest.mark.parametrize("through", ["file", "folder"])
@pytest.mark.parametrize("name", FILES)
def test_no_file_is_read_through_a_link_that_leaves(folder, tmp_path, name, through):
    """Else a folder could have a private file of the machine carried into the artifact."""
    (tmp_path / "private").mkdir()
    secret = tmp_path / "private" / name
    if (folder / name).exists():
        (folder / name).rename(secret)
    else:
        secret.write_text("{}")
    if through == "folder":
        (folder / "sub").symlink_to("../private")
        secret = folder / "sub" / name
    (folder / name).symlink_to(secret)
    error = refused(folder)
    assert (error.message, error.file) == ("link leaves the checkpoint", str(folder / name))
    assert error.found == tmp_path / "private" / name


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors.index.json", "quant_model_description.json"]
)
def test_no_file_of_a_draft_folder_either(folder, tmp_path, name):
    draft = tmp_path / "draft"
    shutil.copytree(folder, draft)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (draft / name).unlink(missing_ok=True)
    (draft / name).symlink_to(secret)
    with pytest.raises(CheckpointError, match="link leaves the checkpoint") as caught:
        Checkpoint.open(folder, draft)
    assert caught.value.file == str(draft / name)


def test_link_inside_the_folder(folder):
    (folder / "one.safetensors").rename(folder / "data")
    (folder / "one.safetensors").symlink_to("data")
    assert Checkpoint.open(folder).has_nextn


def test_link_to_a_sibling_of_an_unrelated_blobs_folder(tmp_path):
    """Only the layout of the Hugging Face cache may leave the folder, and only into its own blobs."""
    (tmp_path / "secrets").mkdir()
    snapshot = tmp_path / "snapshots" / "rev"
    write_folder(snapshot, tiny_config(), tiny_tensors())
    (snapshot / "model.safetensors").rename(tmp_path / "secrets" / "model.safetensors")
    (snapshot / "model.safetensors").symlink_to("../../secrets/model.safetensors")
    assert refused(snapshot).message == "link leaves the checkpoint"


@pytest.mark.parametrize("loop", ["one.safetensors", "absent.safetensors"])
def test_link_to_nowhere(folder, loop):
    (folder / "one.safetensors").unlink()
    (folder / "one.safetensors").symlink_to(loop)
    assert refused(folder).message == "missing shard"


@pytest.mark.parametrize(
    "shard",
    [
        "../outside.safetensors",
        "/etc/outside.safetensors",
        "sub/../../outside.safetensors",
        "config.json",
        "",
        7,
    ],
)
def test_index_that_points_elsewhere(folder, tmp_path, shard):
    write_header(tmp_path / "outside.safetensors", two_tensors())
    write_index(folder, {"norm.weight": shard})
    error = refused(folder)
    assert (error.message, error.key) == ("invalid index", "norm.weight")


@pytest.mark.parametrize("name", ["missing.safetensors", "nul\0.safetensors", "n" * 300 + ".safetensors"])
def test_index_to_a_shard_that_cannot_exist(folder, name):
    """https://github.com/sgl-project/sglang/issues/32279"""
    write_index(folder, {"norm.weight": name})
    error = refused(folder)
    assert error.message == "missing shard"
    assert error.file == str(folder / "model.safetensors.index.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {}}',
        '{"weight_map": {"a": null}}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:30],
)
def test_index_that_is_not_one(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)
    assert refused(folder).file == str(folder / "model.safetensors.index.json")


def test_damaged_shard_is_named(folder):
    file = folder / "one.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    error = refused(folder)
    assert (error.message, error.file) == ("truncated file", str(file))
    assert error.key is not None


def test_dtype_that_lies_about_every_shape(folder):
    """BF16 relabelled as F16 has the right size, so it loads; relabelled as I16 it must not."""
    file = folder / "one.safetensors"
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"dtype":"F32"', b'"dtype":"I32"'))
    error = refused(folder)
    assert error.message == "wrong tensor dtype"
    assert (error.expected, error.found) == ("F32 or BF16 or F16", "I32")


def test_newlines_in_names_stay_on_one_line(tmp_path):
    name = "evil\n\x1b[31mname"
    error = refused(
        write_folder(tmp_path, tiny_config(), tiny_tensors() | {name: tiny_tensors()["norm.weight"]})
    )
    assert error.key == name
    # A terminal obeys an escape.
    assert "\x1b" not in str(error) and r"\x1b[31mname" in str(error)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 40_000), byte=st.integers(0, 255))
@example(place=101, byte=101)  # opens as before
def test_one_wrong_byte_is_a_named_error_or_a_sound_checkpoint(folder, place, byte):
    file = folder / "one.safetensors"
    sound = file.read_bytes()
    length = int.from_bytes(sound[:8], "little")
    damaged = bytearray(sound)
    damaged[place % (8 + length)] = byte
    file.write_bytes(damaged)
    try:
        checkpoint = Checkpoint.open(folder)
    except CheckpointError as error:
        assert "\n" not in str(error)
    else:
        size = len(sound)
        stored = [item for tensor in checkpoint.tensors.values() for item in tensor.stored]
        assert all(0 < item.offset and item.offset + item.nbytes <= size for item in stored)
    finally:
        file.write_bytes(sound)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from(sorted(tiny_config())),
    value=st.integers(-1, 2**33)
    | st.none()
    | st.booleans()
    | st.floats()
    | st.lists(st.integers(0, 128), max_size=5),
)
def test_one_wrong_config_value_is_a_named_error_or_a_sound_checkpoint(folder, key, value):
    (folder / "config.json").write_text(json.dumps(tiny_config() | {key: value}))
    try:
        Checkpoint.open(folder)
    except CheckpointError as error:
        assert error.key is not None or error.file is not None


@pytest.mark.parametrize(
    ("name", "key"), [("config.json", "hc_mult"), ("model.safetensors.index.json", "head.weight")]
)
def test_key_given_twice(folder, name, key):
    """Readers differ in which of two values they take, so neither is."""
    text = (folder / name).read_text()
    entry = f'"{key}": '
    (folder / name).write_text(text.replace(entry, f"{entry}7, {entry}", 1))
    error = refused(folder)
    assert (error.message, error.file, error.key) == ("invalid JSON", str(folder / name), key)


@pytest.mark.parametrize(
    "name", ["model.safetensors.index.json", "quant_model_description.json", "generation_config.json"]
)
def test_file_that_was_not_downloaded_is_not_absent(folder, name):
    """A cache fills a folder with links; one to nowhere says that the file belongs to the checkpoint."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("blob-that-is-not-there")
    error = refused(folder)
    assert (error.message, error.file) == ("cannot read file", str(folder / name))


def test_config_value_nested_as_deep_as_json_parses(folder):
    """It parses; showing it in an error would exhaust the stack."""
    text = json.dumps(tiny_config() | {"hidden_size": None})
    nested = text.replace('"hidden_size": null', f'"hidden_size": {"[" * 900}{"]" * 900}')
    (folder / "config.json").write_text(nested)
    error = refused(folder)
    assert error.message == "invalid JSON" and "nested deeper" in str(error.found)
