"""Everything that a test needs from the references for one named shape, in one call."""

from dataclasses import dataclass
from pathlib import Path

import torch

from tests.oracles.hugging_face import HuggingFaceTarget, load_target
from tests.oracles.nextn_twin import NextnTwin, load_nextn
from tests.oracles.synthetic import CASES, DEFAULT_AGREEMENT, Config, random_weights, write_checkpoint


@dataclass(frozen=True)
class CaseOracle:
    """A written checkpoint and the references loaded from it."""

    folder: Path
    config: Config
    target: HuggingFaceTarget
    nextn: NextnTwin

    def prompt(self, length: int, seed: int) -> tuple[int, ...]:
        return random_prompt(self.config["vocab_size"], length, seed)


def make_oracle(
    folder: Path,
    name: str,
    seed: int = 1,
    agreement: float = DEFAULT_AGREEMENT,
    dtype: torch.dtype = torch.float32,
) -> CaseOracle:
    """Write case `name` into `folder` and load it; with bfloat16 the references run its values in fp32."""
    config = CASES[name].config
    write_checkpoint(folder, config, random_weights(config, seed, agreement), dtype)
    target = load_target(folder)
    return CaseOracle(folder, config, target, load_nextn(folder, target))


def random_prompt(vocab_size: int, length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, vocab_size, (length,), generator=generator).tolist())
