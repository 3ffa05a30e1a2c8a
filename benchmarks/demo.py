"""Speed of the compiled demo beside its peers, in one run: `python benchmarks/demo.py ARTIFACT [--json F]`.

With `--onnx ARTIFACT`, compiled with `--emit onnx`, ONNX Runtime joins. Contenders take turns on every
prompt, so that a slow minute of the machine meets all of them; figures are medians over prompts. Needs the
`test` extra for Hugging Face and ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from contenders import Contender, exported, hugging_face, native
from transformers.utils import logging

import nextn
from nextn.compile.build.inputs import checkpoint_folder
from nextn.runtime.bindings.model import Model

HOST_ROUNDS = 10_000
START_TOKEN = 257


def held_out_prompts(count: int) -> list[list[int]]:
    """The demo's held-out prompts as it was trained to read them: the start token, then bytes."""
    lines = (checkpoint_folder("demo") / "prompts.jsonl").read_text().splitlines()[:count]
    return [[START_TOKEN, *json.loads(line)["prompt"].encode()] for line in lines]


def compare(
    contenders: Mapping[str, Contender], prompts: Sequence[Sequence[int]], new_tokens: int
) -> dict[str, dict[str, Any]]:
    """Tokens/s of each contender and how many prompts it continues exactly as the first one does."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    equal = dict.fromkeys(contenders, 0)
    for prompt in prompts:
        texts = {}
        for name, contender in contenders.items():
            started = time.perf_counter()
            texts[name] = contender(prompt, new_tokens)
            rates[name].append(len(texts[name]) / (time.perf_counter() - started))
        reference = next(iter(texts.values()))
        for name, text in texts.items():
            equal[name] += text == reference
    return {
        name: {"tokens_per_second": statistics.median(rates[name]), "equal_prompts": equal[name]}
        for name in contenders
    }


def round_times(artifact: Path, prompts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Median microseconds inside and outside the graphs over at least `HOST_ROUNDS` rounds."""
    graph, host = [], []
    with Model(artifact) as model, model.session() as session:
        while len(host) < HOST_ROUNDS:
            for prompt in prompts:
                before = session.metrics().num_rounds
                session.submit(prompt, max_new_tokens=1024, ignore_eos=True)
                session.run()
                times = session.round_times(last=session.metrics().num_rounds - before)
                graph += [sample.graph_us for sample in times]
                host += [sample.host_us for sample in times]
    return {
        "rounds": len(host),
        "graph_us_median": statistics.median(graph),
        "host_us_median": statistics.median(host),
    }


def acceptance(artifact: Path, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Acceptance over 256 new tokens of every prompt, as the run's summary defines it."""
    with nextn.load(artifact) as engine:
        reader = engine.request_reader(max_new_tokens=256, ignore_eos=True)
        requests = [
            reader.read({"token_ids": list(prompt)}, default_id=index) for index, prompt in enumerate(prompts)
        ]
        metrics = engine.run(requests).metrics
    return asdict(metrics.acceptance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--onnx", type=Path)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    logging.set_verbosity_error()
    prompts = held_out_prompts(arguments.prompts)
    longest = max(map(len, prompts)) + arguments.new_tokens + 1
    contenders = {
        "nextn k=3": native(arguments.artifact, speculation=True),
        "nextn k=0": native(arguments.artifact, speculation=False),
        "exported k=3": exported(3, longest),
        "exported k=0": exported(0, longest),
        "Hugging Face generate": hugging_face(),
    }
    rounds = {"round": arguments.artifact}
    if arguments.onnx:
        contenders["ONNX Runtime k=3"] = native(arguments.onnx, speculation=True)
        contenders["ONNX Runtime k=0"] = native(arguments.onnx, speculation=False)
        rounds["round_onnx"] = arguments.onnx
    for contender in contenders.values():
        contender(prompts[0], 8)
    report = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "load": os.getloadavg()[0],
        "prompts": len(prompts),
        "new_tokens": arguments.new_tokens,
        "speed": compare(contenders, prompts, arguments.new_tokens),
        **{name: round_times(artifact, prompts) for name, artifact in rounds.items()},
        "acceptance": acceptance(arguments.artifact, held_out_prompts(50)),
    }
    text = json.dumps(report, indent=2)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
