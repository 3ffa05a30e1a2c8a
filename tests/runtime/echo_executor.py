"""An executor that needs no graphs: what a request generates is its own prompt, again and again.

As a program it is `nextn-run`, with this executor for every artifact.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nextn.runtime import executors
from nextn.runtime.bindings.model import Model
from nextn.runtime.cli import main
from nextn.runtime.contract.blocks import Control, Field, Result
from nextn.runtime.contract.errors import ExecutionError

Words = npt.NDArray[np.int64]


@dataclass
class Echo:
    """A slot's request: its prompt, as far as it was prefilled, and what was generated since."""

    prompt: list[int] = field(default_factory=list)
    generated: int = 0
    rounds: int = 0


class EchoExecutor:
    """A test scripts an output by writing it as the prompt.

    Generated token i is prompt[i mod P], shifted by the seed where the temperature is above 0; round r
    accepts r mod (k + 1) drafts. Each token fills a row of `ring`.

    Settings: `round_us` is slept in a round, `fails` names a graph that raises when launched, `overflows`
    one that claims 99 tokens.
    """

    def __init__(self, model: Model) -> None:
        manifest = model.manifest
        self.settings = dict(word.split("=") for word in manifest.producer.command)
        self.num_steps, self.vocab_size = manifest.speculation.num_steps, manifest.model.vocab_size
        self.slots: dict[int, Echo] = {}

    def attach(self, memory: Mapping[str, memoryview]) -> None:
        inputs = [name for name in memory if name.startswith(("prompt_", "slots_"))]
        self.inputs = {name: np.frombuffer(memory[name], np.int64) for name in inputs}
        self.control = np.frombuffer(memory["control"], np.int64).reshape(-1, Control.WIDTH)
        self.result = np.frombuffer(memory["result"], np.int64).reshape(-1, Result.WIDTH)
        self.ring = np.frombuffer(memory["ring"], np.float32).reshape(len(self.control), -1, 8)

    def load(self, graph: str) -> None: ...

    def write(self, name: str, start: int, stop: int) -> None: ...

    def wait(self) -> None: ...

    def read(self, name: str) -> None: ...

    def close(self) -> None: ...

    def launch(self, graph: str) -> None:
        if self.settings.get("fails") == graph:
            raise ExecutionError(f"graph {graph} failed")
        name, _, batch = graph.partition(".b")
        if name == "prefill":
            self._prefill(int(self.inputs["prompt_slot"][0]))
        elif name in ("round", "accept", "decode"):
            time.sleep(int(self.settings.get("round_us", 0)) / 1e6)
            for slot in self.inputs[f"slots_b{batch}"].tolist():
                self._round(slot, self.num_steps if name != "decode" else 0)
                if self.settings.get("overflows") == graph:
                    self._set(slot, Result.OUT_COUNT, 99)

    def _prefill(self, slot: int) -> None:
        control = self.control[slot]
        count = int(self.inputs["prompt_count"][0])
        if control[Control.POS.offset] == 0:
            self.slots[slot] = Echo()
        echo = self.slots[slot]
        echo.prompt += self.inputs["prompt_tokens"][:count].tolist()
        control[Control.POS.offset] += count
        if len(echo.prompt) == control[Control.PROMPT_LENGTH.offset]:
            self._emit(slot, 1, -1)

    def _round(self, slot: int, num_steps: int) -> None:
        if self.control[slot, Control.FINISHED.offset]:
            return self._set(slot, Result.OUT_COUNT, 0)
        accepted = self.slots[slot].rounds % (num_steps + 1)
        self.slots[slot].rounds += 1
        self._emit(slot, accepted + 1, accepted)

    def _emit(self, slot: int, count: int, accepted: int) -> None:
        """Up to `count` tokens, and the result row as graphs fill it."""
        control, echo, before = self.control[slot], self.slots[slot], self.slots[slot].generated
        finished = False
        while echo.generated < before + count and not finished:
            token = echo.prompt[echo.generated % len(echo.prompt)]
            if control[Control.TEMPERATURE.offset] > 0:
                token = (token + int(control[Control.SEED.offset])) % self.vocab_size
            self.result[slot, echo.generated - before] = token
            echo.generated += 1
            control[Control.REMAINING.offset] -= 1
            self.ring[slot, echo.generated % self.ring.shape[1]] = token * np.array([1, -0.5] * 4)
            finished = control[Control.REMAINING.offset] == 0 or token in control[Control.EOS.columns]
        control[Control.FINISHED.offset] = finished
        self._set(slot, Result.OUT_COUNT, echo.generated - before)
        self._set(slot, Result.ACCEPTED, accepted)
        self._set(slot, Result.FINISHED, finished)
        self._set(slot, Result.POS, len(echo.prompt) + echo.generated - 1)

    def _set(self, slot: int, place: Field, value: int) -> None:
        self.result[slot, place.offset] = value


if __name__ == "__main__":
    executors.make = EchoExecutor
    sys.exit(main())
