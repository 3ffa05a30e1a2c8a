"""Hostile safetensors headers: one named error for each lie, before anything large is allocated.

The kinds of attack are those of the format's own collection:
https://github.com/huggingface/safetensors/tree/main/attacks
"""

import copy
import json
import os
import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from nextn.runtime.contract.errors import ArtifactError, CheckpointError
from nextn.weights.safetensors_header import TensorEntry, read_header
from tests.hostile.checkpoints.crafted import two_tensors, write_header


def refused(path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert caught.value.file == str(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    return caught.value


def changed(tensor: str, **fields) -> dict:
    header = two_tensors()
    header[tensor] |= fields
    return header


def test_sound_header(tmp_path):
    path = write_header(tmp_path / "x.safetensors", two_tensors() | {"__metadata__": {"format": "pt"}})
    start = path.stat().st_size - 24
    assert read_header(path) == {
        "a": TensorEntry("F32", (2, 2), start, 16),
        "b": TensorEntry("U8", (8,), start + 16, 8),
    }


def test_order_in_the_header_does_not_matter(tmp_path):
    header = dict(reversed(two_tensors().items()))
    assert list(read_header(write_header(tmp_path / "x.safetensors", header))) == ["a", "b"]


@pytest.mark.parametrize(
    ("header", "message", "key"),
    [
        (changed("b", data_offsets=[8, 16]), "overlapping tensors", "b"),
        (changed("b", data_offsets=[0, 8]), "overlapping tensors", "a"),
        (changed("a", data_offsets=[0, 16], shape=[4, 4]), "shape contradicts data_offsets", "a"),
        (changed("b", data_offsets=[17, 25]), "hole between tensors", "b"),
        (changed("b", shape=[16], data_offsets=[16, 32]), "truncated file", "b"),
        (changed("b", shape=[4], data_offsets=[16, 20]), "data after the last tensor", "b"),
        (changed("a", dtype="F16"), "shape contradicts data_offsets", "a"),
        (changed("a", dtype="F128"), "unknown dtype", "a"),
        (changed("a", dtype=None), "unknown dtype", "a"),
        (changed("a", dtype=["F32"]), "unknown dtype", "a"),
        (changed("a", dtype="F4", shape=[31]), "shape contradicts data_offsets", "a"),
        (changed("a", shape=[-2, -2]), "invalid shape", "a"),
        (changed("a", shape=[2.0, 2.0]), "invalid shape", "a"),
        (changed("a", shape=[True, 4]), "invalid shape", "a"),
        (changed("a", shape={"0": 4}), "invalid shape", "a"),
        (changed("a", shape=[2**63, 2]), "invalid shape", "a"),
        (changed("a", shape=[1] * 65), "invalid shape", "a"),
        (changed("a", shape=[2**62, 2**62, 2**62]), "shape contradicts data_offsets", "a"),
        (changed("a", data_offsets=[16, 0]), "invalid data_offsets", "a"),
        (changed("a", data_offsets=[0]), "invalid data_offsets", "a"),
        (changed("a", data_offsets=[0, 8, 16]), "invalid data_offsets", "a"),
        (changed("a", data_offsets=[-16, 0]), "invalid data_offsets", "a"),
        (changed("a", data_offsets=[0, 2**64]), "invalid data_offsets", "a"),
        (changed("a", data_offsets="0:16"), "invalid data_offsets", "a"),
        ({"a": [1, 2]}, "unknown dtype", "a"),
        ({"a": {}}, "unknown dtype", "a"),
        ({"__metadata__": {"format": 1}}, "invalid header", "__metadata__"),
        ({"__metadata__": []}, "invalid header", "__metadata__"),
        ({}, "data after the last tensor", None),
        (b"", "invalid header", None),
        (b"{", "invalid header", None),
        (b"null", "invalid header", None),
        (b"[]", "invalid header", None),
        (b'[["a", {}]]', "invalid header", None),
        (b"\xff\xfe", "invalid header", None),
        (b"[" * 200_000, "invalid header", None),
        (b'{"a": ' + b"9" * 10_000 + b"}", "invalid header", None),
        (json.dumps(two_tensors()).encode() + b"{}", "invalid header", None),
    ],
)
def test_each_lie_has_its_error(tmp_path, header, message, key):
    error = refused(write_header(tmp_path / "x.safetensors", header))
    assert (error.message, error.key) == (message, key)


def test_repeated_name(tmp_path):
    entry = json.dumps(two_tensors()["a"])
    header = f'{{"a": {entry}, "a": {entry}}}'.encode()
    error = refused(write_header(tmp_path / "x.safetensors", header, bytes(16)))
    assert (error.message, error.key, error.found) == ("invalid header", "a", "a repeated name")


def test_repeated_key_of_an_entry(tmp_path):
    """`dict` would take the last, other readers the first or none."""
    header = json.dumps(two_tensors()).replace('"shape": [8]', '"shape": [4], "shape": [8]').encode()
    error = refused(write_header(tmp_path / "x.safetensors", header))
    assert (error.message, error.key, error.found) == ("invalid header", "b", "a repeated key")


@pytest.mark.parametrize(
    "place", ['{"x":{"dtype":%s,"shape":[1],"data_offsets":[0,4]}}', '{"__metadata__":%s}']
)
def test_nesting_that_only_showing_would_trip_over(tmp_path, place):
    nested = '{"a":' * 600 + "1" + "}" * 600
    error = refused(write_header(tmp_path / "x.safetensors", (place % nested).encode()))
    assert error.message == "invalid header" and "nested deeper" in str(error.found)


@pytest.mark.parametrize("size", range(8))
def test_file_shorter_than_a_length(tmp_path, size):
    (tmp_path / "x.safetensors").write_bytes(bytes(size))
    assert refused(tmp_path / "x.safetensors").message == "truncated file"


@pytest.mark.parametrize("length", [200_000_000, 2**40, 2**63, 2**64 - 1])
def test_enormous_header_length_allocates_nothing(tmp_path, length):
    """https://github.com/sgl-project/sglang/issues/32279 lists what unreadable shards do elsewhere."""
    path = write_header(tmp_path / "x.safetensors", two_tensors(), length=length)
    with open(path, "r+b") as file:
        # Sparse, so that the claimed header would fit.
        file.truncate(max(path.stat().st_size, min(length + 8, 300_000_000)))
    tracemalloc.start()
    error = refused(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.message == "header too long"
    assert peak < 1_000_000


def test_header_longer_than_the_file(tmp_path):
    path = write_header(tmp_path / "x.safetensors", two_tensors(), length=30_000_000)
    assert refused(path).message == "truncated file"


def test_truncation_anywhere_is_noticed(tmp_path):
    whole = write_header(tmp_path / "whole", two_tensors()).read_bytes()
    for size in range(len(whole)):
        (tmp_path / "x.safetensors").write_bytes(whole[:size])
        assert refused(tmp_path / "x.safetensors").message in ("truncated file", "invalid header")


def test_not_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        assert refused(path).message == "cannot read tensors"
    assert refused(tmp_path / "absent").found == "No such file or directory"


def test_the_error_class_is_the_readers_choice(tmp_path):
    path = write_header(tmp_path / "x.safetensors", {})
    with pytest.raises(ArtifactError):
        read_header(path, ArtifactError)


SMALL = st.integers(-2, 40) | st.sampled_from([2**31, 2**53, 2**63, 2**64, 10**30])
WRONG = st.none() | st.booleans() | st.floats() | st.text(max_size=3) | SMALL | st.lists(SMALL, max_size=4)


@st.composite
def mutated_headers(draw):
    """Sound headers with up to three fields replaced, tensors renamed or dropped, or bytes flipped."""
    header = copy.deepcopy(two_tensors())
    for _ in range(draw(st.integers(0, 3))):
        entry = header[draw(st.sampled_from(["a", "b"]))]
        field = draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        value = draw(st.sampled_from(["F32", "U8", "BF16", "F4", "I64"]) if field == "dtype" else WRONG)
        entry[field] = value
    if draw(st.booleans()):
        header = {name: header[name] for name in draw(st.permutations(sorted(header)))}
    text = bytearray(json.dumps(header).encode())
    for place in draw(st.lists(st.integers(0, len(text) - 1), max_size=2)):
        text[place] = draw(st.integers(0, 255))
    return bytes(text), draw(st.sampled_from([24, 24, 24, 0, 23, 25]))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutation=mutated_headers())
@example(mutation=(json.dumps(two_tensors()).encode(), 24))
def test_a_header_that_is_accepted_is_what_stock_safetensors_reads(tmp_path, mutation):
    header, data_bytes = mutation
    data = bytes(range(data_bytes))
    path = write_header(tmp_path / "x.safetensors", header, data)
    try:
        entries = read_header(path)
    except CheckpointError as error:
        assert "\n" not in str(error)
        return
    with safe_open(path, "pt") as stock:
        assert set(stock.keys()) == entries.keys()
        for name, entry in entries.items():
            view = stock.get_slice(name)
            assert (view.get_dtype(), tuple(view.get_shape())) == (entry.dtype, entry.shape)
    spans = sorted((entry.offset, entry.offset + entry.nbytes) for entry in entries.values())
    assert all(8 + len(header) <= begin <= end <= path.stat().st_size for begin, end in spans)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=64), length=st.integers(0, 2**64 - 1) | st.integers(0, 64))
def test_any_bytes_are_a_named_error_or_sound(tmp_path, content, length):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + content)
    try:
        read_header(path)
    except CheckpointError as error:
        assert error.file == str(path)
