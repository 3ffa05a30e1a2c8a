"""Greedy speculative decoding, simulated without caches.

Greedy speculation emits the trunk's own greedy text, and a round's drafts depend only on that text: the rows
behind it were made from the trunk's streams (the extend step overwrites what drafting wrote), the rows of the
round itself from the draft's streams. So one greedy generation, one trunk pass and one rollout from every row
contain every round that serving could run; what remains is to walk through them.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import EOS, PAD
from .decoder import generate
from .layers import ForwardOptions
from .model import DemoModel

EARLY = 24  # new tokens that count as the beginning of an output
LOOP_TAIL, LONGEST_PERIOD = 64, 32
BATCH = 10


@dataclass
class Texts:
    """Greedy outputs and what each position's drafts would be."""

    ids: Tensor  # [prompts, prompt + new + padding]
    drafts: Tensor  # [prompts, length, k]; row i drafts tokens i+2 .. i+1+k
    prompt: int
    ends: list[int]  # position after the last token each output may contain
    looping: list[bool]
    disagreements: int  # positions where one whole pass and the incremental decoder choose differently


@dataclass
class Acceptance:
    """Counts of rounds by accepted drafts, in total and for rounds that began among the first new tokens."""

    rounds: list[int]
    early: list[int]
    prompts: int = 0
    per_prompt: list[float] = field(default_factory=list)

    @staticmethod
    def mean(rounds: list[int]) -> float:
        """Tokens per round, the target's own token included."""
        return sum((a + 1) * count for a, count in enumerate(rounds)) / max(sum(rounds), 1)

    def conditional(self) -> list[float]:
        """P(draft s accepted | the drafts before it were)."""
        reached = [sum(self.rounds[a:]) for a in range(len(self.rounds))]
        return [after / max(before, 1) for before, after in zip(reached, reached[1:], strict=False)]


def is_looping(tail: list[int]) -> bool:
    """Whether the last bytes repeat with a short period."""
    tail = tail[-LOOP_TAIL:]
    return any(tail[p:] == tail[:-p] for p in range(1, LONGEST_PERIOD + 1))


@torch.no_grad()
def write_texts(model: DemoModel, prompts: Tensor, new: int, k: int) -> Texts:
    """prompts [count, length]; outputs end after `new` tokens or their first eos."""
    length, window = prompts.shape[1], model.config.sliding_window
    ids = generate(model, prompts, new + k)  # the last round may look past the end
    padded = F.pad(ids, (0, -ids.shape[1] % window), value=PAD)
    drafts, chosen = [], []
    for part in padded.split(BATCH):
        streams, logits = model.trunk(part, ForwardOptions())
        rollout = model.drafts(part, streams, k, ForwardOptions(), own_tokens=True)
        drafts.append(torch.stack([step.argmax(-1) for step in rollout], -1))
        chosen.append(logits.argmax(-1))
    best = torch.cat(chosen)[:, length - 1 : ids.shape[1] - 1]
    ends = []
    for row in ids.tolist():
        output = row[length : length + new]
        ends.append(length + (output.index(EOS) + 1 if EOS in output else new))
    looping = [is_looping(row[length:end]) for row, end in zip(ids.tolist(), ends, strict=True)]
    return Texts(padded, torch.cat(drafts), length, ends, looping, int((best != ids[:, length:]).sum()))


def walk(texts: Texts, drafts: Tensor, keep: list[bool]) -> Acceptance:
    """Run the rounds of the kept outputs. The prefill yields the first token; a round starts from `known`."""
    k = drafts.shape[-1]
    result = Acceptance([0] * (k + 1), [0] * (k + 1))
    for row, kept in enumerate(keep):
        if not kept:
            continue
        ids, proposed, counts = texts.ids[row].tolist(), drafts[row].tolist(), [0] * (k + 1)
        known = texts.prompt  # position of the newest token, not yet seen by the trunk
        while known + 1 < texts.ends[row]:
            accepted = 0
            while accepted < k and proposed[known - 1][accepted] == ids[known + 1 + accepted]:
                accepted += 1
            counts[accepted] += 1
            if known < texts.prompt + EARLY:
                result.early[accepted] += 1
            known += accepted + 1
        result.rounds = [total + count for total, count in zip(result.rounds, counts, strict=True)]
        result.prompts += 1
        result.per_prompt.append(Acceptance.mean(counts))
    return result


def repeat_last(texts: Texts, k: int) -> Tensor:
    """Trivial drafter: the newest token again and again; same layout as Texts.drafts."""
    newest = F.pad(texts.ids[:, 1:], (0, 1), value=PAD)
    return newest.unsqueeze(-1).expand(-1, -1, k)


def bigram_chain(texts: Texts, k: int, training_text: Tensor, vocabulary: int) -> Tensor:
    """Trivial drafter: the byte that most often follows in the training text, chained."""
    pairs = training_text[:-1] * vocabulary + training_text[1:]
    follower = torch.bincount(pairs, minlength=vocabulary**2).view(vocabulary, vocabulary).argmax(-1)
    token, chain = F.pad(texts.ids[:, 1:], (0, 1), value=PAD), []
    for _ in range(k):
        token = follower[token]
        chain.append(token)
    return torch.stack(chain, -1)
