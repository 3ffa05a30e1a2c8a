"""The persistent buffers of a session and the buffers its host writes. Source: docs/design.md, "State"."""

from __future__ import annotations

import torch
from torch import nn

from nextn.graphs.session_shape import SessionShape, overlap
from nextn.runtime.contract.blocks import Control, Result
from nextn.runtime.contract.graph_spec import StateSpec, TensorSpec


def state_table(shape: SessionShape) -> list[StateSpec]:
    """Every state buffer in the order it is allocated; all are `[(slots + 1) * rows, width]`."""
    config, dtype, ring = shape.config, shape.dtype, shape.ring_rows
    table = [
        StateSpec("control", 1, Control.WIDTH, "int64"),
        StateSpec("result", 1, Result.WIDTH, "int64"),
        StateSpec("tokens", ring, 1, "int64"),
        StateSpec("target_streams", ring, config.stream_width, dtype),
    ]
    if shape.num_steps > 0:
        table += [
            StateSpec("nextn_stream", 1, config.stream_width, dtype),
            StateSpec("nextn_window", ring, config.head_dim, dtype),
        ]
    for layer, ratio in enumerate(config.compress_ratios):
        table.append(StateSpec(f"window_{layer}", ring, config.head_dim, dtype))
        if ratio > 0:
            table += _compressor_state(shape, ratio, "", layer, config.head_dim)
        if ratio == 4:
            table += _compressor_state(shape, ratio, "indexer_", layer, config.index_head_dim)
    return table


def _compressor_state(
    shape: SessionShape, ratio: int, prefix: str, layer: int, width: int
) -> list[StateSpec]:
    ring_width = 2 * overlap(ratio) * width  # value and gate channels of one position
    return [
        StateSpec(f"{prefix}ring_{layer}", shape.compressor_rows(ratio), ring_width, "float32"),
        StateSpec(f"{prefix}entries_{layer}", shape.entry_rows(ratio), width, shape.dtype),
    ]


def input_table(shape: SessionShape) -> list[TensorSpec]:
    """Buffers the host writes before a launch; all int64."""
    slots = [TensorSpec(f"slots_b{batch}", "input", "int64", (batch,)) for batch in shape.batch_sizes]
    return slots + [
        TensorSpec("prompt_slot", "input", "int64", (1,)),
        TensorSpec("prompt_tokens", "input", "int64", (shape.prefill_chunk,)),
        TensorSpec("prompt_count", "input", "int64", (1,)),
    ]


class State(nn.Module):
    """All state and input buffers of one session, zero-filled; graphs mutate them in place."""

    def __init__(self, shape: SessionShape) -> None:
        super().__init__()
        self.scratch_slot = shape.slots
        for spec in state_table(shape):
            dtype = getattr(torch, spec.dtype)
            self.register_buffer(spec.name, torch.zeros(spec.shape(shape.slots), dtype=dtype))
        for tensor in input_table(shape):
            self.register_buffer(tensor.name, torch.zeros(tensor.shape, dtype=torch.int64))
        self.reset_scratch()

    def reset_scratch(self) -> None:
        """Make the scratch slot a finished request. Padded rows replay it, so they never advance or emit."""
        control = self.get_buffer("control")
        control[self.scratch_slot] = 0
        control[self.scratch_slot, Control.FINISHED.columns] = 1
        control[self.scratch_slot, Control.EOS.columns] = -1
