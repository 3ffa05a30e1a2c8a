"""Stage 1: train trunk, indexer and NextN draft layer together.

The schedule counts steps, so a seed gives the same run on any machine up to floating-point order. Two
processes, one thread each, can share every step: faster on two cores, but other batches and another model.
"""

import argparse
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor

from .attention import OVERLAPPING_RATIO
from .data import Corpus, load_corpus, sample_windows
from .layers import ForwardOptions
from .matmul import reduced_precision
from .model import DemoModel
from .optimizer import Optimizer

# glibc otherwise returns every large activation to the kernel and pays for its pages again in the next step.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "OMP_NUM_THREADS": "1"}
WARM_UP_STEPS = 60
FINAL_SCALE = 0.005
IDS_PER_STEP = 4096
INDEXER_EVERY = 4
BALANCE_RATE = 0.003
LOG_EVERY, SAVE_EVERY = 50, 50


@dataclass
class Settings:
    output: Path
    steps: int
    seed: int = 0
    processes: int = 1
    decay_from: float = 0.65  # the rate falls linearly to nearly zero after this share of the steps
    long_from: float = 0.1  # windows grow from 512 to 1024 ids
    # Before, C4 layers see their window only: once C4 works, little is left from which C128 could learn.
    copying_from: float = 0.2
    sparse_from: float = 0.3  # C4 layers stop reading every entry and follow the indexer
    draft_every_from: float = 0.6  # before, only every second step trains the draft layer
    rollout_from: float = 0.85  # the draft layer learns three chained steps instead of one
    draft_weight: float = 0.5
    muon_rate: float = 0.01
    adam_rate: float = 3e-3
    port: int = 29555
    resume: Path | None = None

    @property
    def ids_per_process(self) -> int:
        return IDS_PER_STEP // self.processes


@dataclass
class StepPlan:
    """What one step does, a function of the step number alone."""

    length: int
    drafts: int
    hidden_ratio: int
    sparse: bool
    indexer: bool
    scale: float

    @staticmethod
    def of(step: int, settings: Settings) -> "StepPlan":
        progress = step / settings.steps
        drafts = 3 if progress >= settings.rollout_from else 1
        if progress < settings.draft_every_from and step % 2:
            drafts = 0
        decay = min(1.0, (1 - progress) / (1 - settings.decay_from))
        return StepPlan(
            length=1024 if progress >= settings.long_from else 512,
            drafts=drafts,
            hidden_ratio=OVERLAPPING_RATIO if progress < settings.copying_from else 0,
            sparse=progress >= settings.sparse_from,
            indexer=step % INDEXER_EVERY == 0,
            scale=min(1.0, (step + 1) / WARM_UP_STEPS) * decay + FINAL_SCALE,
        )


def balanced_table(text: Tensor, vocabulary: int, experts: int, chosen: int) -> Tensor:
    """Hash routing table [vocabulary, chosen]: most frequent ids first, each to the least loaded experts."""
    counts = torch.bincount(text, minlength=vocabulary)
    load = [0] * experts
    table = torch.zeros(vocabulary, chosen, dtype=torch.long)
    for token in counts.argsort(descending=True, stable=True).tolist():
        least = sorted(range(experts), key=lambda e: (load[e], (5 * e + token) % experts))[:chosen]
        table[token] = torch.tensor(least)
        for expert in least:
            load[expert] += max(int(counts[token]), 1)
    return table


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy against a distribution, [...] from [..., vocab] twice."""
    return -(target * logits.log_softmax(-1)).sum(-1)


class Trainer:
    def __init__(self, settings: Settings, rank: int):
        self.settings, self.rank = settings, rank
        torch.manual_seed(settings.seed)
        self.corpus: Corpus = load_corpus()
        self.model = DemoModel()
        config = self.model.config
        for block in self.model.blocks()[: config.num_hash_layers]:
            table = (config.vocab_size, config.n_routed_experts, config.num_experts_per_tok)
            block.ffn.gate.tid2eid.copy_(balanced_table(self.corpus.train, *table))
        decay = 0.1 * settings.muon_rate
        self.optimizer = Optimizer(self.model, settings.muon_rate, settings.adam_rate, decay)
        self.step, self.seen = 0, 0
        if settings.resume:
            state = torch.load(settings.resume)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state(state["optimizer"])
            self.step, self.seen = state["step"], state["seen"]
        self.sums: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)

    def record(self, name: str, value: float) -> None:
        self.sums[name] += value
        self.counts[name] += 1

    def loss(self, plan: StepPlan) -> Tensor:
        settings = self.settings
        seed = f"{settings.seed}-{self.rank}-{self.step}"
        count = settings.ids_per_process // plan.length
        inputs, targets = sample_windows(self.corpus.train, count, plan.length, seed)
        options = ForwardOptions(
            sparse=plan.sparse,
            indexer_losses=[] if plan.indexer else None,
            hidden_ratio=plan.hidden_ratio,
        )
        streams, logits = self.model.trunk(inputs, options)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.record("nll", loss.item())
        if options.indexer_losses:
            distillation = torch.stack(options.indexer_losses).sum()
            self.record("indexer", distillation.item())
            loss = loss + distillation
        if plan.drafts:
            draft_loss = self.draft_loss(inputs, streams, logits.detach(), plan.drafts)
            loss = loss + settings.draft_weight * draft_loss
        return loss

    def draft_loss(self, inputs: Tensor, streams: Tensor, logits: Tensor, steps: int) -> Tensor:
        """Mean over steps of the cross entropy to the trunk's distribution for the same token."""
        target, best = logits.softmax(-1), logits.argmax(-1)
        losses = []
        for number, draft in enumerate(self.model.drafts(inputs, streams, steps, ForwardOptions()), 1):
            draft = draft[:, :-number]
            losses.append(soft_cross_entropy(draft, target[:, number:]).mean())
            agreement = (draft.detach().argmax(-1) == best[:, number:]).float().mean()
            self.record(f"agree{number}", agreement.item())
        return torch.stack(losses).mean()

    def synchronise(self, plan: StepPlan) -> None:
        """Average gradients and expert loads over the processes, then balance the gate biases."""
        routers = self.model.routers()
        gradients = [(p, p.grad) for p in self.optimizer.parameters if p.grad is not None]
        flat = torch.cat([grad.flatten() for _, grad in gradients] + [r.load for r in routers])
        if self.settings.processes > 1:
            dist.all_reduce(flat)
            flat /= self.settings.processes
        if not torch.isfinite(flat).all():
            raise FloatingPointError(f"non-finite gradient at step {self.step}")
        pieces = flat.split([grad.numel() for _, grad in gradients] + [len(r.load) for r in routers])
        for (parameter, _), piece in zip(gradients, pieces, strict=False):
            parameter.grad = piece.view_as(parameter)
        for router, load in zip(routers, pieces[len(gradients) :], strict=True):
            router.gate.bias += BALANCE_RATE * plan.scale * torch.sign(load.mean() - load)
            self.record("largest_load", (load.max() / load.mean()).item())

    def save(self) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state()}
        partial = self.settings.output.with_suffix(".partial")
        torch.save({**state, "step": self.step, "seen": self.seen}, partial)
        partial.replace(self.settings.output)

    def run(self) -> None:
        begun, settings = time.time(), self.settings
        seen_before = self.seen
        while self.step < settings.steps:
            plan = StepPlan.of(self.step, settings)
            with reduced_precision():
                loss = self.loss(plan)
            loss.backward()
            self.synchronise(plan)
            self.optimizer.step(plan.scale)
            self.step += 1
            self.seen += IDS_PER_STEP
            if self.rank == 0 and self.step % LOG_EVERY == 0:
                speed = (self.seen - seen_before) / (time.time() - begun)
                self.log(time.time() - begun, plan, speed)
            if self.rank == 0 and (self.step % SAVE_EVERY == 0 or self.step == settings.steps):
                self.save()

    def log(self, seconds: float, plan: StepPlan, speed: float) -> None:
        means = " ".join(f"{name} {self.sums[name] / self.counts[name]:.4f}" for name in sorted(self.sums))
        head = f"step {self.step} seconds {seconds:.0f} bytes {self.seen} per_second {speed:.0f}"
        print(f"{head} length {plan.length} scale {plan.scale:.3f} {means}", flush=True)
        self.sums.clear()
        self.counts.clear()


def work(rank: int, settings: Settings) -> None:
    torch.set_num_threads(1)
    if settings.processes > 1:
        address = f"tcp://127.0.0.1:{settings.port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=settings.processes)
    Trainer(settings, rank).run()
    if settings.processes > 1:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="checkpoint to write, with optimiser state")
    parser.add_argument("--steps", type=int, required=True, help=f"steps of {IDS_PER_STEP} ids")
    parser.add_argument("--resume", type=Path, help="checkpoint to continue; --steps is still the total")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2))
    parser.add_argument("--port", type=int, default=29555)
    arguments = parser.parse_args()
    os.environ.update(ALLOCATOR)  # read by the processes started below
    settings = Settings(**vars(arguments))
    mp.spawn(work, args=(settings,), nprocs=settings.processes)


if __name__ == "__main__":
    main()
