"""A step of a compile in a process of its own: `memory_probe worker|golden FOLDER`.

The model has a gigabyte of zeros. A worker ends where code would be generated.
"""

import json
import sys
from contextlib import suppress
from pathlib import Path
from unittest import mock

import torch
from torch._inductor import compile_fx

from nextn.compile.build import golden, worker
from nextn.compile.build.trace import unwritten_model
from nextn.compile.cli.trace_report import peak_memory
from nextn.compile.targets.aoti.target import AotiTarget
from nextn.graphs.session_shape import SessionShape
from nextn.weights.config_json import parse_model_config
from tests.oracles.synthetic import CASES

WIDE_EXPERTS = {"n_routed_experts": 128, "moe_intermediate_size": 4096}


class Generating(Exception):
    """Inductor is about to generate code."""


def generate(*_: object, **__: object) -> None:
    raise Generating


def main(step: str, folder: str) -> None:
    torch.set_num_threads(1)
    config, _ = parse_model_config(CASES["window_only"].config | WIDE_EXPERTS, "config.json")
    shape = SessionShape(config, num_steps=1, max_seq_len=12, prefill_chunk=4)
    weights = dict(unwritten_model(shape)[0].named_buffers())
    before = peak_memory()
    if step == "worker":
        library = Path(folder) / "graph.so"
        target, unread = AotiTarget("cpu"), Path(folder) / "weights.safetensors"
        job = worker.GraphJob("draft_step", 1, shape, target, target.tools(), library, unread)
        patched = mock.patch.object(compile_fx.compile_fx_aot, "__defaults__", (generate, None))
        with patched, suppress(Generating):
            worker.run_job(job)
            raise AssertionError("no code was to be generated")
    else:
        with mock.patch.object(golden, "NEW_TOKENS", 2):
            golden.write_golden(shape, weights, Path(folder) / "golden.safetensors")
    model = sum(weight.nbytes for weight in weights.values())
    print(json.dumps({"model_bytes": model, "taken_bytes": peak_memory() - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
