"""Held-out NLL, and how much it rises when one part of the model is taken away."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .data import Corpus, sample_windows
from .layers import ForwardOptions
from .model import DemoModel

WINDOWS, LENGTH = 48, 1024
SEED = "held-out-nll"
BATCH = 4


@dataclass
class Nll:
    everywhere: float  # nats per byte
    second_half: float  # the same over positions >= LENGTH / 2


def ablations(vocabulary: int) -> dict[str, ForwardOptions]:
    shuffle = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(7))
    return {
        "C4 entries removed": ForwardOptions(hidden_ratio=4),
        "C128 entries removed": ForwardOptions(hidden_ratio=128),
        "indexer chooses at random": ForwardOptions(random_choice=True),
        "indexer keeps every entry": ForwardOptions(sparse=False),
        "hash routing table shuffled": ForwardOptions(hash_ids=shuffle),
        "hash layer without routed experts": ForwardOptions(drop_routed="hash"),
        "score layers without routed experts": ForwardOptions(drop_routed="score"),
    }


@torch.no_grad()
def measure(model: DemoModel, corpus: Corpus, options: ForwardOptions, windows: int = WINDOWS) -> Nll:
    """`options.hash_ids` is a permutation of the vocabulary here, applied to every batch."""
    inputs, targets = sample_windows(corpus.held_out, windows, LENGTH, SEED)
    losses: list[Tensor] = []
    permutation = options.hash_ids
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
        options.hash_ids = None if permutation is None else permutation[x]
        _, logits = model.trunk(x, options)  # [batch, length, vocab]
        losses.append(F.cross_entropy(logits.transpose(1, 2), y, reduction="none"))
    options.hash_ids = permutation
    nll = torch.cat(losses)  # [windows, length]
    return Nll(nll.mean().item(), nll[:, LENGTH // 2 :].mean().item())


def ablation_table(model: DemoModel, corpus: Corpus, windows: int = WINDOWS) -> dict[str, tuple[Nll, Nll]]:
    """Name -> (NLL, change against the whole model)."""
    whole = measure(model, corpus, ForwardOptions(), windows)
    table = {"whole model": (whole, Nll(0.0, 0.0))}
    for name, options in ablations(model.config.vocab_size).items():
        nll = measure(model, corpus, options, windows)
        change = Nll(nll.everywhere - whole.everywhere, nll.second_half - whole.second_half)
        table[name] = (nll, change)
    return table
