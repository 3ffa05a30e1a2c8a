"""The eager session driver: the native host loop in Python, over exported programs or eager modules.

Tests and golden vectors use it. It launches graphs in the order of the native loop, one prefill chunk of one
slot and then one round of the live slots (docs/design.md, "Rounds and accept"), so that its results hold for
that loop too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nextn.graphs.model import Model
from nextn.graphs.phases import build_graph, graph_keys
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State
from nextn.runtime.contract.blocks import MAX_EOS, TEMPERATURE_ONE, Control, Field, Result
from nextn.runtime.contract.errors import RequestError

GraphKey = tuple[str, int]


@dataclass
class EagerRequest:
    """One prompt with its results. `accept_lens` counts the tokens that a round produced before trimming."""

    prompt: Sequence[int]
    max_new_tokens: int
    eos: Sequence[int] = ()
    seed: int = 0
    temperature: float = 0.0
    tokens: list[int] = field(default_factory=list)
    accept_lens: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class EagerSession:
    """Slots, state and graphs of one eager session."""

    def __init__(
        self,
        shape: SessionShape,
        state: State,
        graphs: Mapping[GraphKey, Callable[[], object]],
        *,
        speculation: bool = True,
        phases: bool = False,
    ) -> None:
        self.shape = shape
        self.state = state
        self.graphs = graphs
        self.speculation = speculation and shape.num_steps > 0
        self.phases = phases
        self.launches: list[GraphKey] = []
        self.live: dict[int, EagerRequest] = {}

    def generate(self, requests: Sequence[EagerRequest]) -> list[EagerRequest]:
        """Run all requests to the end; a turn is at most one prefill chunk, then one round."""
        queue = deque(requests)
        prefilling: Iterator[None] | None = None
        while queue or self.live or prefilling:
            free = [slot for slot in range(self.shape.slots) if slot not in self.live]
            if prefilling is None and queue and free:
                prefilling = self.prefill_chunks(free[0], queue.popleft())
            if prefilling is not None and next(prefilling, self) is self:
                prefilling = None
            self.round()
        return list(requests)

    def prefill(self, slot: int, request: EagerRequest) -> None:
        """Admit `request` into `slot`: every chunk, the first token, and the seed of the first drafts."""
        for _ in self.prefill_chunks(slot, request):
            pass

    def prefill_chunks(self, slot: int, request: EagerRequest) -> Iterator[None]:
        """The same in steps: each launches a chunk, and the last also takes the token and seeds."""
        self.write_control(slot, request)
        prompt = torch.tensor(request.prompt, dtype=torch.int64)
        self.input("prompt_slot")[0] = slot
        for start in range(0, len(prompt), self.shape.prefill_chunk):
            if start > 0:
                yield
            piece = prompt[start : start + self.shape.prefill_chunk]
            tokens = self.input("prompt_tokens")
            tokens.zero_()
            tokens[: len(piece)] = piece
            self.input("prompt_count")[0] = len(piece)
            self.launch("prefill", 1)
        self.live[slot] = request
        self.collect(slot, in_round=False)
        if self.speculation and slot in self.live:
            self.launch("seed", 1)

    def round(self) -> None:
        """One round of every live slot in the smallest bucket that holds them."""
        slots = sorted(self.live)
        if not slots:
            return
        batch = min(size for size in self.shape.batch_sizes if size >= len(slots))
        padding = [self.shape.slots] * (batch - len(slots))
        self.input(f"slots_b{batch}").copy_(torch.tensor(slots + padding))
        for name in self.round_graphs():
            self.launch(name, batch)
        for slot in slots:
            self.collect(slot, in_round=True)

    def round_graphs(self) -> list[str]:
        if not self.speculation:
            return ["decode"]
        if not self.phases:
            return ["round"]
        return ["verify", "accept", "draft_extend"] + ["draft_step"] * (self.shape.num_steps - 1)

    def launch(self, name: str, batch: int) -> None:
        self.launches.append((name, batch))
        self.graphs[name, batch]()

    def collect(self, slot: int, *, in_round: bool) -> None:
        """Move a slot's result row into its request; free the slot once it is finished."""
        request = self.live[slot]
        count = self.result(slot, Result.OUT_COUNT)[0]
        request.tokens += self.result(slot, Result.OUT)[:count]
        if in_round:
            request.accept_lens.append(self.result(slot, Result.ACCEPTED)[0] + 1)
        if self.result(slot, Result.FINISHED)[0]:
            request.finish_reason = "stop" if request.tokens[-1] in request.eos else "length"
            del self.live[slot]

    def write_control(self, slot: int, request: EagerRequest) -> None:
        """The control row of a fresh request; `RequestError` if the prompt does not fit the artifact."""
        room = self.shape.max_seq_len - len(request.prompt)
        if not request.prompt or room < 1:
            raise RequestError(
                "prompt does not fit",
                key="prompt",
                expected=f"1..{self.shape.max_seq_len - 1} tokens",
                found=len(request.prompt),
            )
        row = torch.zeros(Control.WIDTH, dtype=torch.int64)
        row[Control.REMAINING.columns] = min(request.max_new_tokens, room)
        row[Control.SEED.columns] = request.seed
        if request.temperature > 0:  # however small, it is not greedy
            row[Control.TEMPERATURE.columns] = max(1, round(request.temperature * TEMPERATURE_ONE))
        row[Control.PROMPT_LENGTH.columns] = len(request.prompt)
        padding = [-1] * (MAX_EOS - len(request.eos))
        row[Control.EOS.columns] = torch.tensor([*request.eos, *padding])
        self.input("control")[slot] = row

    def input(self, name: str) -> Tensor:
        return self.state.get_buffer(name)

    def result(self, slot: int, block_field: Field) -> list[int]:
        values: list[int] = self.input("result")[slot, block_field.columns].tolist()
        return values


def eager_graphs(model: Model, state: State, shape: SessionShape) -> dict[GraphKey, nn.Module]:
    """Every graph of `shape` as its plain module."""
    return {key: build_graph(*key, model, state, shape) for key in graph_keys(shape)}


def exported_graphs(
    model: Model, state: State, shape: SessionShape, keys: Sequence[GraphKey] | None = None
) -> dict[GraphKey, nn.Module]:
    """The same graphs through `torch.export`: the programs that targets lower, run eagerly."""
    programs: dict[GraphKey, nn.Module] = {}
    for key in keys or graph_keys(shape):
        module = build_graph(*key, model, state, shape)
        programs[key] = torch.export.export(module, (), strict=False).module(check_guards=False)
    return programs
