"""Measure an exported release: held-out NLL, ablations, speculative acceptance and trivial drafters."""

import argparse
import time
from pathlib import Path

import torch

from . import prompts
from .data import load_corpus
from .export import RELEASE, load_release
from .perplexity import ablation_table
from .speculative import Acceptance, Texts, bigram_chain, repeat_last, walk, write_texts

NEW_TOKENS, DRAFTS = 256, 3


def describe(name: str, result: Acceptance) -> str:
    rounds = sum(result.rounds)
    conditional = " ".join(f"{rate:.3f}" for rate in result.conditional())
    spread = torch.tensor(result.per_prompt).std().item() if result.prompts > 1 else 0.0
    return (
        f"{name}: {result.prompts} outputs, {rounds} rounds, mean {Acceptance.mean(result.rounds):.3f}, "
        f"first 24 {Acceptance.mean(result.early):.3f}, conditional {conditional}, "
        f"between prompts {spread:.2f}, rounds by accepted drafts {result.rounds}"
    )


def report_drafter(name: str, texts: Texts, drafts: torch.Tensor) -> None:
    everything = [True] * len(texts.looping)
    steady = [not looping for looping in texts.looping]
    print(describe(f"{name}, all", walk(texts, drafts, everything)))
    print(describe(f"{name}, not looping", walk(texts, drafts, steady)))
    print(describe(f"{name}, looping", walk(texts, drafts, texts.looping)), flush=True)


def show_outputs(texts: Texts, count: int) -> None:
    for row in range(count):
        ids = texts.ids[row, : texts.ends[row]].tolist()
        begin, output = ids[: texts.prompt], ids[texts.prompt :]
        text = [bytes(i for i in part if i < 256).decode(errors="replace") for part in (begin[-64:], output)]
        print(f"output {row}: ...{text[0]!r} -> {text[1]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=RELEASE)
    parser.add_argument("--seed", type=int, default=prompts.SEED, help="another seed draws fresh prompts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-ablations", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    begun = time.time()
    model, corpus = load_release(arguments.folder), load_corpus()
    if not arguments.without_ablations:
        print("held-out NLL in nats per byte: everywhere, second half of the window (change)")
        for name, (nll, change) in ablation_table(model, corpus).items():
            print(
                f"{name}: {nll.everywhere:.4f} ({change.everywhere:+.4f}), "
                f"{nll.second_half:.4f} ({change.second_half:+.4f})",
                flush=True,
            )
    chosen = prompts.encode(prompts.sample_prompts(seed=arguments.seed))
    texts = write_texts(model, chosen, NEW_TOKENS, DRAFTS)
    print(
        f"{len(chosen)} prompts of {chosen.shape[1]} ids, at most {NEW_TOKENS} new; "
        f"incremental and whole-pass choices differ at {texts.disagreements} positions"
    )
    report_drafter("NextN", texts, texts.drafts)
    report_drafter("repeat the last token", texts, repeat_last(texts, DRAFTS))
    report_drafter("bigram table", texts, bigram_chain(texts, DRAFTS, corpus.train, model.config.vocab_size))
    show_outputs(texts, 4)
    print(f"{time.time() - begun:.0f} seconds")


if __name__ == "__main__":
    main()
