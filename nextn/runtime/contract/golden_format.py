"""`golden.safetensors`: runs with a known outcome, written at compile and replayed by `--selftest`.

The file's metadata holds the script as JSON under `SCRIPT_KEY`; every run i has five kinds of tensors:

    run{i}.tokens       int64   [N]      emitted tokens, the first one from prefill
    run{i}.margins      float32 [N]      top-2 distance of the scores (noise included) each was drawn from
    run{i}.accept_lens  int64   [R]      accepted drafts + 1 of each round, untrimmed
    run{i}.blocks       int64   [R, W]   result block row of slot 0 after each round
    run{i}.state.NAME   float64 [rows, 2]  per row of slot 0, once the run is over: sum, sum of magnitudes

Each run starts from zeroed state, alone, in slot 0; a speculative run replays `prefill`, `seed` and
`round`, a plain one `prefill` and `decode`, all with batch 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from nextn.runtime.contract.errors import ArtifactError
from nextn.runtime.contract.strict_json import DecodeFault, decode

GOLDEN_FILE = "golden.safetensors"
GOLDEN_FORMAT = "nextn-golden-1"
MAX_GOLDEN_BYTES = 64 << 20
SCRIPT_KEY = "script"

TOKENS = "tokens"
MARGINS = "margins"
ACCEPT_LENS = "accept_lens"
BLOCKS = "blocks"


@dataclass(frozen=True)
class GoldenRun:
    """One request. `temperature` is fixed point, `blocks.TEMPERATURE_ONE` = 1.0."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: int
    seed: int
    ignore_eos: bool
    speculation: bool


@dataclass(frozen=True)
class GoldenScript:
    """All runs and how closely a replay must follow them.

    Tokens must be equal where the stored margin is at least `token_margin`. A row's sums may differ by
    `state_rtol` times its recorded sum of magnitudes plus `state_atol`. `state` names the checked buffers.
    """

    format: str
    token_margin: float
    state_rtol: float
    state_atol: float
    state: tuple[str, ...]
    runs: tuple[GoldenRun, ...]


def run_tensor(run: int, kind: str) -> str:
    """Tensor name of a run's `TOKENS`, `MARGINS`, `ACCEPT_LENS` or `BLOCKS`."""
    return f"run{run}.{kind}"


def state_tensor(run: int, name: str) -> str:
    """Tensor name of a run's row sums of one state buffer."""
    return f"run{run}.state.{name}"


def script_metadata(script: GoldenScript) -> dict[str, str]:
    """The safetensors metadata that carries `script`."""
    return {SCRIPT_KEY: json.dumps(asdict(script))}


def parse_script(metadata: Mapping[str, str] | None, file: object) -> GoldenScript:
    """Reads the script back; `file` only names it in messages. Raises ArtifactError."""
    try:
        raw = json.loads((metadata or {})[SCRIPT_KEY])
        script = decode(GoldenScript, raw)
        if script.format != GOLDEN_FORMAT:
            raise DecodeFault("format", GOLDEN_FORMAT, script.format)
    except (KeyError, ValueError) as error:
        raise ArtifactError("golden file has no readable script", file=file, found=error) from error
    except DecodeFault as fault:
        raise ArtifactError(
            "golden script refused", file=file, key=fault.key, expected=fault.expected, found=fault.found
        ) from fault
    return script
