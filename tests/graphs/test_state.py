"""Session shapes, the state table, and what a fresh state holds."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.collectives import Parallel, gather_argmax, reduce_sum
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State, input_table, state_table
from nextn.runtime.contract.blocks import MAX_EOS, MAX_STEPS, Control, Result
from nextn.runtime.contract.errors import UsageError
from nextn.weights.config_json import parse_model_config
from tests.graphs.releases import flash_config, pro_config
from tests.oracles.synthetic import CASES

WIDEST = MAX_STEPS + 1


def config_of(name: str) -> ModelConfig:
    raw = {"flash": flash_config(), "pro": pro_config()}.get(name) or CASES[name].config
    return parse_model_config(raw, "config.json")[0]


@pytest.mark.parametrize("name", ["flash", "pro", *CASES])
@pytest.mark.parametrize("max_seq_len", [2, 4096, 4097])
def test_rows_hold_the_widest_window(name, max_seq_len):
    """R = W + n_max - 1 and c * r + n_max - 1 rows; entries for the window that passes the maximum length.

    Sizes do not depend on k. https://github.com/NVIDIA/TensorRT-LLM/issues/18242: one row too few.
    """
    config = config_of(name)
    for num_steps in (1, 3, MAX_STEPS):
        shape = SessionShape(config, num_steps=num_steps, max_seq_len=max_seq_len)
        table = {spec.name: spec for spec in state_table(shape)}
        ring = config.sliding_window + WIDEST - 1
        for label in ("tokens", "target_streams", "nextn_window"):
            assert table[label].rows_per_slot == ring
        assert table["target_streams"].row_width == config.hc_mult * config.hidden_size
        for layer, ratio in enumerate(config.compress_ratios):
            assert table[f"window_{layer}"].rows_per_slot == ring
            assert table[f"window_{layer}"].row_width == config.head_dim
            assert (f"ring_{layer}" in table) == (ratio > 0)
            assert (f"indexer_ring_{layer}" in table) == (ratio == 4)
            if ratio:
                overlapping = 2 if ratio == 4 else 1
                assert table[f"ring_{layer}"].rows_per_slot == overlapping * ratio + WIDEST - 1
                assert table[f"ring_{layer}"].row_width == 2 * overlapping * config.head_dim
                # The last entry that a window starting at the last position can complete still fits.
                last = max_seq_len - 1 + WIDEST
                assert table[f"entries_{layer}"].rows_per_slot >= last // ratio
                assert (table[f"entries_{layer}"].rows_per_slot - 1) * ratio <= last + 1
        assert not [label for label in table if label.startswith("window_") and label.endswith("mtp")]


@pytest.mark.parametrize(
    ("max_seq_len", "ratio", "rows"),
    [(2, 4, 16), (55, 4, 16), (56, 4, 32), (503, 4, 128), (504, 4, 256), (8192, 4, 2176), (8192, 128, 80)],
)
def test_entries_are_rounded_up_where_asked(max_seq_len: int, ratio: int, rows: int) -> None:
    """To a multiple of 128, or of 16 where they are no more than 128."""
    shape = SessionShape(config_of("flash"), max_seq_len=max_seq_len)
    rounded = dataclasses.replace(shape, entry_rows_multiples=(16, 128))
    assert rounded.entry_rows(ratio) == rows >= shape.entry_rows(ratio) > rows - (128 if rows > 128 else 16)


def test_every_state_name_is_unique_and_the_blocks_are_int64():
    shape = SessionShape(config_of("tiny"), dtype="bfloat16", batch_sizes=(1, 2))
    names = [spec.name for spec in state_table(shape)] + [spec.name for spec in input_table(shape)]
    assert len(set(names)) == len(names)
    table = {spec.name: spec for spec in state_table(shape)}
    assert table["control"].shape(2) == (3, Control.WIDTH) and table["control"].dtype == "int64"
    assert table["result"].shape(2) == (3, Result.WIDTH)
    # Compressor rings stay fp32 whatever the compute dtype.
    assert {spec.dtype for label, spec in table.items() if "ring" in label} == {"float32"}
    assert {table[label].dtype for label in ("window_0", "entries_1", "target_streams")} == {"bfloat16"}


def test_a_fresh_state_is_zero_but_for_the_scratch_row():
    """A padded row replays the scratch slot, so that one starts finished and without end tokens."""
    shape = SessionShape(config_of("tiny"), batch_sizes=(1, 4))
    state = State(shape)
    control = state.get_buffer("control")
    assert control[4, Control.FINISHED.columns].tolist() == [1]
    assert control[4, Control.EOS.columns].tolist() == [-1] * MAX_EOS
    control[4] = 0
    for name, buffer in state.named_buffers():
        assert not buffer.any(), name
    state.reset_scratch()
    assert control[4, Control.FINISHED.columns].tolist() == [1] and not control[:4].any()


def test_inputs_of_a_session():
    shape = SessionShape(config_of("tiny"), batch_sizes=(1, 4), prefill_chunk=32)
    found = {spec.name: spec.shape for spec in input_table(shape)}
    assert found == {
        "slots_b1": (1,),
        "slots_b4": (4,),
        "prompt_slot": (1,),
        "prompt_tokens": (32,),
        "prompt_count": (1,),
    }
    assert {spec.dtype for spec in input_table(shape)} == {"int64"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "float16"),
        ("num_steps", -1),
        ("num_steps", MAX_STEPS + 1),
        ("batch_sizes", ()),
        ("batch_sizes", (0, 1)),
        ("batch_sizes", (4, 1)),
        ("batch_sizes", (1, 1)),
        ("max_seq_len", 1),
        ("prefill_chunk", 0),
        ("stored_layouts", (("head.weight", "int8_row"), ("head.weight", "int8_row"))),
        ("entry_rows_multiples", ()),
        ("entry_rows_multiples", (0, 16)),
        ("entry_rows_multiples", (128, 16)),
        ("parallel", Parallel(0, 2)),
    ],
)
def test_shapes_out_of_range_are_refused_by_name(key, value):
    shape = SessionShape(config_of("tiny"))
    with pytest.raises(UsageError, match=key):
        dataclasses.replace(shape, **{key: value})


def test_a_window_is_one_row_wider_than_the_number_of_steps():
    for num_steps in (0, 3, MAX_STEPS):
        shape = SessionShape(config_of("tiny"), num_steps=num_steps, batch_sizes=(2, 5))
        assert (shape.window_rows, shape.slots) == (num_steps + 1, 5)
    assert torch.tensor(WIDEST) == shape.window_rows


def test_an_unknown_layout_is_refused_by_the_name_of_its_matrix():
    shape = SessionShape(config_of("tiny"))
    with pytest.raises(UsageError, match="head.weight"):
        dataclasses.replace(shape, stored_layouts=(("head.weight", "fp4"),))


@pytest.mark.parametrize(("rank", "size", "key"), [(0, 0, "size"), (2, 2, "rank"), (-1, 1, "rank")])
def test_ranks_out_of_range_are_refused_by_name(rank, size, key):
    with pytest.raises(UsageError, match=f"parallel.{key}"):
        Parallel(rank, size)


def test_one_rank_adds_no_node():
    x = torch.randn(2, 3)
    assert reduce_sum(x, Parallel()) is x
    assert gather_argmax(torch.tensor([[1.0, 3.0, 3.0]]), Parallel()).tolist() == [1]
