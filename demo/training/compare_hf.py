"""Check the exported trunk against Hugging Face's DeepseekV4ForCausalLM in fp32 on held-out text."""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV4ForCausalLM

from .data import load_corpus, sample_windows
from .export import RELEASE, load_release
from .layers import ForwardOptions

TOLERANCE = 1e-3
WINDOWS, LENGTH = 4, 1024


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=RELEASE)
    folder = parser.parse_args().folder
    loaded: Any = DeepseekV4ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    reference, problems = loaded
    print("loading problems:", {kind: sorted(names)[:3] for kind, names in problems.items() if names})
    ids, _ = sample_windows(load_corpus().held_out, WINDOWS, LENGTH, "compare-hf")
    expected = reference.eval()(input_ids=ids, use_cache=False).logits
    _, actual = load_release(folder).trunk(ids, ForwardOptions())
    rows = (expected - actual).abs().amax(-1).flatten()  # [windows * length]
    above = int((rows > TOLERANCE).sum())
    print(
        f"largest difference {rows.max():.2e}, median row {rows.median():.2e}, "
        f"logit deviation {expected.std():.2f}, rows above {TOLERANCE}: {above} of {len(rows)}"
    )
    if above:
        raise SystemExit("the exported trunk and Hugging Face disagree")


if __name__ == "__main__":
    main()
