"""Golden runs: what a fixed script of requests must come to, recorded from the eager graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from nextn.graphs.eager_session import EagerRequest, EagerSession, eager_graphs
from nextn.graphs.model import Model
from nextn.graphs.ops.sample_token import gumbel_noise
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State, state_table
from nextn.runtime.contract import golden_format
from nextn.runtime.contract.blocks import TEMPERATURE_ONE, Result
from nextn.runtime.contract.errors import ExecutionError
from nextn.runtime.contract.golden_format import GoldenRun, GoldenScript

NEW_TOKENS = 16

# A compiled graph rounds differently from the eager one: by last bits in float32, by whole bits in bfloat16.
_TOKEN_MARGIN = {"float32": 1e-4, "bfloat16": 0.25}
_STATE_RTOL = {"float32": 1e-3, "bfloat16": 5e-2}
_STATE_ATOL = {"float32": 1e-4, "bfloat16": 5e-2}


class WatchedModel(Model):
    """A `Model` that remembers the logits of the current launch, in the order the graph computes them."""

    def __init__(self, shape: SessionShape) -> None:
        super().__init__(shape)
        self.seen: list[Tensor] = []

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        self.seen.append(logits)
        return logits


class RecordingSession(EagerSession):
    """The eager driver, keeping each round's result row and each emitted token's margin."""

    def __init__(self, shape: SessionShape, model: WatchedModel, run: GoldenRun) -> None:
        state = State(shape)
        super().__init__(shape, state, eager_graphs(model, state, shape), speculation=run.speculation)
        self.model = model
        self.run = run
        self.margins: list[float] = []
        self.blocks: list[Tensor] = []

    def launch(self, name: str, batch: int) -> None:
        self.model.seen.clear()
        super().launch(name, batch)

    def collect(self, slot: int, *, in_round: bool) -> None:
        row = self.input("result")[slot].clone()
        if in_round:
            self.blocks.append(row)
        count, end = int(row[Result.OUT_COUNT.offset]), int(row[Result.POS.offset])
        # The Target's logits come first in every graph; slot 0 owns the leading rows.
        logits = self.model.seen[0].flatten(0, -2)[:count]
        positions = torch.arange(end - count + 1, end + 1)[None]
        noise = gumbel_noise(torch.tensor([self.run.seed]), positions, logits.shape[-1])[0]
        best = (logits + self.run.temperature / TEMPERATURE_ONE * noise).topk(2, dim=-1).values
        self.margins += (best[:, 0] - best[:, 1]).tolist()
        super().collect(slot, in_round=in_round)


def golden_script(shape: SessionShape) -> GoldenScript:
    """A script that depends on the shape alone: prompts within and beyond one chunk, greedy and sampled."""
    vocab, longest = shape.config.vocab_size, shape.max_seq_len - 1
    short = _prompt(min(7, longest), vocab, start=1)
    chunked = _prompt(min(shape.prefill_chunk + 5, max(1, longest - NEW_TOKENS)), vocab, start=2)
    runs = [
        GoldenRun(short, NEW_TOKENS, 0, 0, ignore_eos=True, speculation=False),
        GoldenRun(chunked, NEW_TOKENS, TEMPERATURE_ONE, 11, ignore_eos=False, speculation=False),
    ]
    if shape.num_steps > 0:
        runs += [
            GoldenRun(short, NEW_TOKENS, 0, 0, ignore_eos=True, speculation=True),
            GoldenRun(chunked, NEW_TOKENS, TEMPERATURE_ONE, 11, ignore_eos=False, speculation=True),
        ]
    return GoldenScript(
        format=golden_format.GOLDEN_FORMAT,
        token_margin=_TOKEN_MARGIN[shape.dtype],
        state_rtol=_STATE_RTOL[shape.dtype],
        state_atol=_STATE_ATOL[shape.dtype],
        state=tuple(spec.name for spec in state_table(shape) if spec.name not in ("control", "result")),
        runs=tuple(runs),
    )


def write_golden(shape: SessionShape, weights: Mapping[str, Tensor], output: Path) -> None:
    """Runs the script on the eager graphs and writes `golden.safetensors`.

    Raises ExecutionError if the file would be larger than the format allows.
    """
    # Shapes alone: zeros to be replaced would take the memory of a second model.
    with torch.device("meta"):
        model = WatchedModel(shape)
    model.load_weights(weights)
    script = golden_script(shape)
    tensors: dict[str, Tensor] = {}
    with torch.no_grad():
        for index, run in enumerate(script.runs):
            tensors |= _record(index, run, script, shape, model)
    data = save(tensors, metadata=golden_format.script_metadata(script))
    if len(data) > golden_format.MAX_GOLDEN_BYTES:
        raise ExecutionError(
            "golden vectors are too large",
            expected=f"at most {golden_format.MAX_GOLDEN_BYTES} bytes",
            found=len(data),
        )
    output.write_bytes(data)


def _record(
    index: int, run: GoldenRun, script: GoldenScript, shape: SessionShape, model: WatchedModel
) -> dict[str, Tensor]:
    session = RecordingSession(shape, model, run)
    eos = () if run.ignore_eos else shape.config.eos_token_ids
    request = EagerRequest(
        run.prompt, run.max_new_tokens, eos, seed=run.seed, temperature=run.temperature / TEMPERATURE_ONE
    )
    session.generate([request])
    rows = {spec.name: spec.rows_per_slot for spec in state_table(shape)}
    blocks = session.blocks or [torch.empty(Result.WIDTH, dtype=torch.int64)]
    return {
        golden_format.run_tensor(index, golden_format.TOKENS): torch.tensor(
            request.tokens, dtype=torch.int64
        ),
        golden_format.run_tensor(index, golden_format.MARGINS): torch.tensor(
            session.margins, dtype=torch.float32
        ),
        golden_format.run_tensor(index, golden_format.ACCEPT_LENS): torch.tensor(
            request.accept_lens, dtype=torch.int64
        ),
        golden_format.run_tensor(index, golden_format.BLOCKS): torch.stack(blocks)[: len(session.blocks)],
        **{
            golden_format.state_tensor(index, name): _row_sums(session.input(name)[: rows[name]])
            for name in script.state
        },
    }


def _row_sums(rows: Tensor) -> Tensor:
    """Sum and sum of magnitudes of each row, float64 `[rows, 2]`."""
    wide = rows.to(torch.float64)
    return torch.stack([wide.sum(1), wide.abs().sum(1)], dim=1)


def _prompt(length: int, vocab: int, start: int) -> tuple[int, ...]:
    """Token ids that look arbitrary and depend on nothing but the arguments."""
    return tuple((start * 7919 + index * index * 31 + index * 17) % vocab for index in range(length))
