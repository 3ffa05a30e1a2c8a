"""Stage 2: teach the draft layer the trunk's own greedy text, with the trunk frozen as released."""

import argparse
import os
import random
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from .data import load_corpus, sample_windows
from .decoder import generate
from .layers import ForwardOptions
from .matmul import reduced_precision
from .model import DemoModel, round_to_release
from .optimizer import Optimizer
from .train import ALLOCATOR, BALANCE_RATE

DRAFTS = 3
LENGTH, ROWS = 448, 5
PROMPT, BATCH = 256, 256  # ids of real text before the trunk continues; prompts generated together
STEP_WEIGHTS = (1.5, 0.5, 0.25)  # a wrong first draft wastes the later ones
ON_POLICY_SHARE = 0.85
HARD_SHARE = 0.5  # weight of the trunk's argmax against its whole distribution
UNREACHABLE_WEIGHT = 0.2  # rows that serving cannot reach: an earlier token was not the trunk's choice
WARM_UP_STEPS = 20
LOG_EVERY = 25


@dataclass
class Settings:
    source: Path
    output: Path
    steps: int
    batches: int
    processes: int = 1
    seed: int = 1
    muon_rate: float = 0.003
    adam_rate: float = 1e-3


def frozen_trunk(source: Path) -> DemoModel:
    """Everything rounded except the draft layer, whose masters keep full precision until the export."""
    model = DemoModel()
    model.load_state_dict(torch.load(source)["model"])
    draft = {name: value.clone() for name, value in model.mtp.state_dict().items()}
    round_to_release(model)
    model.mtp.load_state_dict(draft)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("mtp."))
    return model


def write_batch(source: Path, seed: str) -> Tensor:
    """Prompts from the training text and the trunk's continuation, [BATCH, LENGTH]."""
    torch.set_num_threads(1)
    prompts, _ = sample_windows(load_corpus().train, BATCH, PROMPT, seed)
    return generate(frozen_trunk(source), prompts, LENGTH - PROMPT)


def write_text(settings: Settings, pool: ProcessPoolExecutor) -> Tensor:
    """[batches * BATCH, LENGTH] ids."""
    seeds = [f"on-policy-{settings.seed}-{number}" for number in range(settings.batches)]
    return torch.cat(list(pool.map(write_batch, [settings.source] * settings.batches, seeds)))


class Distiller:
    def __init__(self, settings: Settings, text: Tensor):
        self.settings, self.text, self.corpus = settings, text, load_corpus()
        self.model = frozen_trunk(settings.source)
        self.optimizer = Optimizer(self.model, settings.muon_rate, settings.adam_rate)
        self.random = random.Random(settings.seed)
        self.reached: dict[int, float] = defaultdict(float)
        self.agreed: dict[int, float] = defaultdict(float)

    def batch(self, step: int) -> Tensor:
        """[ROWS, LENGTH] ids, mostly the trunk's own text."""
        rows = []
        for row in range(ROWS):
            if self.random.random() < ON_POLICY_SHARE:
                rows.append(self.text[self.random.randrange(len(self.text))][None])
            else:
                rows.append(sample_windows(self.corpus.train, 1, LENGTH, f"distil-{step}-{row}")[0])
        return torch.cat(rows)

    def loss(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            streams, logits = self.model.trunk(ids, ForwardOptions())
            target, best = logits.softmax(-1), logits.argmax(-1)
            # followed[:, i]: token i is what the trunk would have chosen
            followed = F.pad(best[:, :-1] == ids[:, 1:], (1, 0))
        total = torch.zeros(())
        reachable = torch.ones_like(followed)
        with reduced_precision():
            drafts = self.model.drafts(ids, streams, DRAFTS, ForwardOptions())
        for number, draft in enumerate(drafts, 1):
            # draft `number` at row i is read only if the tokens i+1 .. i+number were all the trunk's choices
            reachable = reachable & F.pad(followed[:, number:], (0, number))
            reach = reachable[:, :-number]
            log_probabilities = draft[:, :-number].log_softmax(-1)
            soft = -(target[:, number:] * log_probabilities).sum(-1)
            hard = -log_probabilities.gather(-1, best[:, number:, None]).squeeze(-1)
            weight = torch.where(reach, 1.0, UNREACHABLE_WEIGHT)
            mean = (((1 - HARD_SHARE) * soft + HARD_SHARE * hard) * weight).sum() / weight.sum()
            total = total + STEP_WEIGHTS[number - 1] * mean
            agree = (log_probabilities.argmax(-1) == best[:, number:]) & reach
            self.agreed[number] += agree.sum().item()
            self.reached[number] += reach.sum().item()
        return total

    def run(self) -> None:
        begun, settings = time.time(), self.settings
        router = self.model.draft_layer().ffn
        for step in range(settings.steps):
            scale = min(1.0, (step + 1) / WARM_UP_STEPS) * (1 - step / settings.steps) + 0.01
            self.loss(self.batch(step)).backward()
            self.optimizer.step(scale)
            router.gate.bias += BALANCE_RATE / 3 * scale * torch.sign(router.load.mean() - router.load)
            if (step + 1) % LOG_EVERY == 0:
                rates = " ".join(f"agree{n} {self.agreed[n] / self.reached[n]:.4f}" for n in self.reached)
                print(f"step {step + 1} seconds {time.time() - begun:.0f} {rates}", flush=True)
                self.agreed.clear()
                self.reached.clear()
        torch.save({"model": self.model.state_dict()}, settings.output)


def distil(settings: Settings, text: Tensor) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    Distiller(settings, text).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batches", type=int, default=5, help=f"{BATCH} prompts to continue each")
    parser.add_argument("--processes", type=int, default=1, help="processes that write text")
    parser.add_argument("--seed", type=int, default=1)
    settings = Settings(**vars(parser.parse_args()))
    os.environ.update(ALLOCATOR)  # read by the processes started below
    begun = time.time()
    with ProcessPoolExecutor(settings.processes, get_context("spawn")) as pool:
        text = write_text(settings, pool)
        print(f"wrote {len(text)} rows of {LENGTH} ids in {time.time() - begun:.0f} seconds", flush=True)
        pool.submit(distil, settings, text).result()


if __name__ == "__main__":
    main()
