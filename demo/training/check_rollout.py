"""Check the all-rows rollout against serving's loop run literally: one row appended per draft step."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import DraftStep
from .config import PAD
from .data import load_corpus, sample_windows
from .export import load_release
from .layers import ForwardOptions
from .model import DemoModel

LENGTH, DRAFTS = 256, 3
TOLERANCE = 1e-3


def serve_one_round(model: DemoModel, ids: Tensor, streams: Tensor, row: int) -> list[Tensor]:
    """Draft logits of the round whose newest known token is row + 1; `streams` come from the trunk."""
    tokens = F.pad(ids[:, 1:], (0, 1), value=PAD)
    streams, logits = streams.clone(), []
    for position in range(row, row + DRAFTS):
        current, _, predictions = model.draft_rows(tokens, streams, ForwardOptions(), DraftStep())
        logits.append(predictions[0, position])
        streams[position + 1] = current[position]
        tokens[0, position + 1] = logits[-1].argmax()
    return logits


@torch.no_grad()
def main() -> None:
    model = load_release()
    ids, _ = sample_windows(load_corpus().held_out, 1, LENGTH, "check-rollout")
    streams, _ = model.trunk(ids, ForwardOptions())
    rollout = model.drafts(ids, streams, DRAFTS, ForwardOptions(), own_tokens=True)
    largest = 0.0
    window = model.config.sliding_window
    for row in (0, 5, window - 1, window, 2 * window + 2, LENGTH - DRAFTS - 1):
        for expected, step in zip(serve_one_round(model, ids, streams, row), rollout, strict=True):
            largest = max(largest, (expected - step[0, row]).abs().max().item())
    print(f"largest difference {largest:.2e}")
    if largest > TOLERANCE:
        raise SystemExit("the rollout differs from serving")


if __name__ == "__main__":
    main()
