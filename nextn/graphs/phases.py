"""The table of graphs: those that exist for a session shape, and the module of each.

Source: docs/design.md, "Graphs".
"""

from __future__ import annotations

from torch import nn

from nextn.graphs.draft_phases import DraftExtend, DraftStep, Seed
from nextn.graphs.model import Model
from nextn.graphs.phase import Phase, Sequence
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.graphs.target_phases import Accept, Prefill, Verify

SEPARATE_PHASES = ("verify", "accept", "draft_extend", "draft_step")
"""Graphs of one phase each, for hosts that run or time phases one by one; a `round` holds all of them."""


def graph_keys(shape: SessionShape) -> list[tuple[str, int]]:
    """`(name, batch)` of every graph, in build order. At k = 0 only `prefill` and `decode` exist."""
    keys = [("prefill", 1)]
    if shape.num_steps > 0:
        keys.append(("seed", 1))
    for batch in shape.batch_sizes:
        keys.append(("decode", batch))
        if shape.num_steps > 0:
            keys += [(name, batch) for name in ("verify", "accept", "draft_extend")]
        if shape.num_steps > 1:
            keys.append(("draft_step", batch))
        if shape.num_steps > 0:
            keys.append(("round", batch))
    return keys


def graph_rows(name: str, shape: SessionShape) -> int:
    """Rows per request of the graph's first phase, as `GraphSpec.rows` records it."""
    rows = {"prefill": shape.prefill_chunk, "seed": shape.config.sliding_window, "decode": 1, "draft_step": 1}
    return rows.get(name, shape.window_rows)


def slots_input(name: str, batch: int) -> str:
    """The input tensor that holds the slots a graph serves."""
    return "prompt_slot" if name in ("prefill", "seed") else f"slots_b{batch}"


def build_graph(name: str, batch: int, model: Model, state: State, shape: SessionShape) -> nn.Module:
    """The module of one graph: `forward()` takes nothing and returns `()`."""
    slots = slots_input(name, batch)

    def phase(kind: type[Phase]) -> Phase:
        return kind(model, state, shape, slots)

    def verify_and_accept(rows: int) -> list[Phase]:
        return [Verify(model, state, shape, slots, rows), Accept(model, state, shape, slots, rows)]

    steps = [phase(DraftStep) for _ in range(shape.num_steps - 1)]
    match name:
        case "prefill":
            return phase(Prefill)
        case "seed":
            return Sequence([phase(Seed), *steps])
        case "decode":
            return Sequence(verify_and_accept(1))
        case "verify":
            return verify_and_accept(shape.window_rows)[0]
        case "accept":
            return verify_and_accept(shape.window_rows)[1]
        case "draft_extend":
            return phase(DraftExtend)
        case "draft_step":
            return phase(DraftStep)
        case "round":
            return Sequence([*verify_and_accept(shape.window_rows), phase(DraftExtend), *steps])
    raise AssertionError(f"no graph named {name}")
