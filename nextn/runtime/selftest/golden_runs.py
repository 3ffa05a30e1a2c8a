"""`--selftest`: replays the artifact's golden runs and reports the first difference of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session, SessionResult
from nextn.runtime.contract import golden_format as form
from nextn.runtime.contract.blocks import TEMPERATURE_ONE, Result
from nextn.runtime.contract.errors import ArtifactError, ExecutionError
from nextn.runtime.contract.golden_format import GoldenRun, GoldenScript
from nextn.runtime.engine.artifact_files import checked_path
from nextn.runtime.selftest.golden_state import BufferDifference, compare_rows
from nextn.runtime.selftest.state_rows import row_sums
from nextn.runtime.selftest.times import SelftestTimes

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

RESULT_BUFFER = "result"

COMPARED_FIELDS = ("out_count", "accepted", "finished", "pos")


@dataclass(frozen=True)
class Check:
    """One compared aspect of one replay; `detail` says what differs, or what was covered.

    `buffers` has every state buffer, if it was state that was compared.
    """

    name: str
    passed: bool
    detail: str
    buffers: tuple[BufferDifference, ...] = ()


@dataclass(frozen=True)
class Expected:
    """What one golden run must come to."""

    tokens: Integers
    margins: Floats
    accept_lens: Integers
    blocks: Integers
    state: dict[str, Floats]


class GoldenFile:
    """The artifact's golden runs, checked against the manifest and read whole."""

    def __init__(self, model: Model) -> None:
        """Raises ArtifactError if the file is missing, damaged or incomplete."""
        self.path: Path = checked_path(model.directory, model.manifest.golden)
        try:
            with safe_open(str(self.path), framework="numpy") as file:
                self.script: GoldenScript = form.parse_script(file.metadata(), self.path)
                self.expected = [
                    Expected(
                        tokens=file.get_tensor(form.run_tensor(index, form.TOKENS)),
                        margins=file.get_tensor(form.run_tensor(index, form.MARGINS)),
                        accept_lens=file.get_tensor(form.run_tensor(index, form.ACCEPT_LENS)),
                        blocks=file.get_tensor(form.run_tensor(index, form.BLOCKS)),
                        state={
                            name: file.get_tensor(form.state_tensor(index, name))
                            for name in self.script.state
                        },
                    )
                    for index in range(len(self.script.runs))
                ]
        except (SafetensorError, OSError) as error:
            raise ArtifactError("golden file cannot be read", file=self.path, found=error) from error


def selftest(model: Model, times: SelftestTimes | None = None) -> Iterator[Check]:
    """Replays every golden run alone (as `round` and as phases), then several together in each batch size.

    Phases are left out if the artifact has none. What fails while it runs is a check that failed; `times`
    keeps how long what was replayed took. Raises ArtifactError if the golden file is unusable, and what
    making a session raises.
    """
    golden = GoldenFile(model)
    replay = _Replay(model, golden, times or SelftestTimes())
    for index, run in enumerate(golden.script.runs):
        yield from replay.alone(index, phases=False)
        if run.speculation and model.has_phases:
            yield from replay.alone(index, phases=True)
    for batch in model.manifest.limits.batch_sizes:
        for speculation, phases in ((True, False), (True, True), (False, False)):
            members = [i for i, run in enumerate(golden.script.runs) if run.speculation == speculation]
            if batch > 1 and members and (model.has_phases or not phases):
                yield replay.together(members, batch, speculation=speculation, phases=phases)


class _Replay:
    """Sessions over golden runs, each compared to what was recorded."""

    def __init__(self, model: Model, golden: GoldenFile, times: SelftestTimes) -> None:
        self._model = model
        self._golden = golden
        self._times = times

    def alone(self, index: int, *, phases: bool) -> Iterator[Check]:
        run, expected, script = (
            self._golden.script.runs[index],
            self._golden.expected[index],
            self._golden.script,
        )
        graphs = _graphs(run.speculation, phases)
        label = f"run {index} ({graphs})"
        executor = self._times.executor(self._model)
        try:
            with self._model.session(
                slots=1, speculation=run.speculation, phases=phases, executor=executor
            ) as session:
                request = _submit(session, run)
                blocks = _run_keeping_blocks(session, request)
                self._times.keep_rounds(graphs, session)
                result = session.result(request)
                yield _compare_tokens(f"{label} tokens", expected, result, script.token_margin)
                if tuple(expected.tokens) != result.tokens:
                    return
                yield _compare_accept_lens(f"{label} accept lens", expected, result)
                yield _compare_blocks(f"{label} result blocks", expected, blocks)
                if not phases:
                    yield _compare_state(f"{label} state", self._model, session, expected, script)
        except ExecutionError as error:
            yield Check(f"{label} runs", False, str(error))

    def together(self, members: Sequence[int], batch: int, *, speculation: bool, phases: bool) -> Check:
        chosen = [members[position % len(members)] for position in range(batch)]
        graphs = _graphs(speculation, phases)
        name = f"{batch} requests together ({graphs}) tokens"
        executor = self._times.executor(self._model)
        try:
            with self._model.session(
                slots=batch, speculation=speculation, phases=phases, executor=executor
            ) as session:
                requests = [_submit(session, self._golden.script.runs[index]) for index in chosen]
                session.run()
                self._times.keep_rounds(f"{graphs}, {batch} together", session)
                for index, request in zip(chosen, requests, strict=True):
                    check = _compare_tokens(
                        name,
                        self._golden.expected[index],
                        session.result(request),
                        self._golden.script.token_margin,
                    )
                    if not check.passed:
                        return Check(name, False, f"run {index}: {check.detail}")
        except ExecutionError as error:
            return Check(name, False, str(error))
        return Check(name, True, f"{len(chosen)} requests")


def _graphs(speculation: bool, phases: bool) -> str:
    return "phases" if phases else "round" if speculation else "decode"


def _submit(session: Session, run: GoldenRun) -> int:
    return session.submit(
        run.prompt,
        max_new_tokens=run.max_new_tokens,
        temperature=run.temperature / TEMPERATURE_ONE,
        seed=run.seed,
        ignore_eos=run.ignore_eos,
    )


def _run_keeping_blocks(session: Session, request: int) -> list[Integers]:
    """Runs to the end and returns slot 0's result row after each round."""
    blocks: list[Integers] = []
    row_bytes = Result.WIDTH * np.dtype(np.int64).itemsize
    view = session.state(RESULT_BUFFER)
    busy = True
    while busy:
        busy = session.turn()
        if len(session.result(request).accept_lens) > len(blocks):
            blocks.append(np.frombuffer(view[:row_bytes].tobytes(), np.int64))
    return blocks


def _compare_tokens(name: str, expected: Expected, result: SessionResult, margin: float) -> Check:
    found = np.array(result.tokens, np.int64)
    shared = min(len(found), len(expected.tokens))
    different = np.flatnonzero(found[:shared] != expected.tokens[:shared])
    if len(different):
        at = int(different[0])
        detail = f"token {at}: expected {expected.tokens[at]}, found {found[at]}"
        if expected.margins[at] >= margin:
            return Check(name, False, detail)
        return Check(name, True, f"{detail}: a near tie, margin {expected.margins[at]:.1e}")
    if len(found) != len(expected.tokens):
        return Check(name, False, f"expected {len(expected.tokens)} tokens, found {len(found)}")
    return Check(name, True, f"{len(found)} tokens")


def _compare_accept_lens(name: str, expected: Expected, result: SessionResult) -> Check:
    wanted, found = expected.accept_lens.tolist(), list(result.accept_lens)
    for index, (one, other) in enumerate(zip(wanted, found, strict=False)):
        if one != other:
            return Check(name, False, f"round {index}: expected {one}, found {other}")
    if len(wanted) != len(found):
        return Check(name, False, f"expected {len(wanted)} rounds, found {len(found)}")
    return Check(name, True, f"{len(found)} rounds")


def _compare_blocks(name: str, expected: Expected, found: Sequence[Integers]) -> Check:
    if len(found) != len(expected.blocks):
        return Check(name, False, f"expected {len(expected.blocks)} rounds, found {len(found)}")
    for index, (wanted, row) in enumerate(zip(expected.blocks, found, strict=True)):
        for field in COMPARED_FIELDS:
            column = getattr(Result, field.upper()).offset
            if wanted[column] != row[column]:
                detail = f"round {index}: {field} expected {wanted[column]}, found {row[column]}"
                return Check(name, False, detail)
        emitted = slice(Result.OUT.offset, Result.OUT.offset + int(wanted[Result.OUT_COUNT.offset]))
        if not np.array_equal(wanted[emitted], row[emitted]):
            detail = f"round {index}: out expected {wanted[emitted].tolist()}, found {row[emitted].tolist()}"
            return Check(name, False, detail)
    return Check(name, True, f"{len(found)} rounds")


def _compare_state(
    name: str, model: Model, session: Session, expected: Expected, script: GoldenScript
) -> Check:
    specifications = {specification.name: specification for specification in model.manifest.state}
    differences = []
    for buffer, wanted in expected.state.items():
        if buffer not in specifications:
            raise ArtifactError("golden script refused", key="state", expected="a state buffer", found=buffer)
        found = row_sums(session.state(buffer), specifications[buffer])
        differences.append(compare_rows(buffer, wanted, found, script.state_rtol, script.state_atol))
    faults = [difference.fault for difference in differences if difference.fault is not None]
    rows = sum(difference.rows for difference in differences)
    detail = "; ".join(faults) or f"{rows} rows of {len(differences)} buffers"
    return Check(name, not faults, detail, tuple(differences))
