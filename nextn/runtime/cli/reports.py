"""What people read: the figures of a run, and the description of an artifact."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from nextn.runtime.bindings.model import Model
from nextn.runtime.engine.metrics import Percentiles
from nextn.runtime.engine.run_metrics import RunMetrics


def run_table(metrics: RunMetrics, num_refused: int) -> Table:
    """A short summary: medians where there are several values."""
    acceptance = metrics.acceptance
    per_position = acceptance.acceptance_rate_per_position or ()
    rows = {
        "requests": f"{metrics.num_requests}" + (f" ({num_refused} refused)" if num_refused else ""),
        "prompt tokens": f"{metrics.prompt_tokens}",
        "tokens": f"{metrics.generated_tokens}",
        "tokens/s": _number(metrics.tokens_per_second, ".1f"),
        "ttft": _median(metrics.ttft_ms, "ms"),
        "per token": _median(metrics.tpot_ms, "ms"),
        "rounds": f"{metrics.num_rounds}",
        "mean acceptance length": _number(acceptance.mean_acceptance_length, ".2f"),
        "acceptance per position": " ".join(f"{rate:.2f}" for rate in per_position) or "-",
        **{
            name.removesuffix("_us").replace("_", " ") + " per round": _median(spread, "us")
            for name, spread in metrics.round_us.items()
        },
    }
    if metrics.num_requests == 1 and num_refused == 0:
        del rows["requests"]
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def info_object(model: Model) -> dict[str, Any]:
    """What `--info` prints: sizes in bytes and tokens, and how the artifact was made."""
    manifest = model.manifest
    return {
        "artifact": str(model.directory),
        "format_version": manifest.format_version,
        "producer": asdict(manifest.producer),
        "target": asdict(manifest.target),
        "speculation": asdict(manifest.speculation),
        "limits": asdict(manifest.limits),
        "vocab_size": manifest.model.vocab_size,
        "eos_token_ids": manifest.model.eos_token_ids,
        "tokenizer": bool(manifest.tokenizer),
        "ops": manifest.ops,
        "graphs": [graph.spec.key for graph in manifest.graphs],
        "weight_bytes": model.info.weight_bytes,
        "state_bytes": model.info.state_bytes,
    }


def info_text(model: Model) -> str:
    """The same for people, one aligned line each."""
    value = info_object(model)
    producer, target, limits = value["producer"], value["target"], value["limits"]
    rows = {
        "artifact": value["artifact"],
        "made by": f"nextn {producer['nextn']}, torch {producer['torch']}, {producer['compiler']}",
        "target": f"{target['device']} {target['dtype']} ({_form(target)})",
        "draft steps k": f"{value['speculation']['num_steps']}",
        "max sequence length": f"{limits['max_seq_len']} tokens",
        "prefill chunk": f"{limits['prefill_chunk']} tokens",
        "batch sizes": " ".join(map(str, limits["batch_sizes"])),
        "vocabulary": f"{value['vocab_size']} tokens, EOS {' '.join(map(str, value['eos_token_ids']))}",
        "tokenizer": "yes" if value["tokenizer"] else "none (token ids only)",
        "graphs": " ".join(value["graphs"]),
        "weights": f"{value['weight_bytes'] / 1e6:.1f} MB",
        "state": f"{value['state_bytes'] / 1e6:.1f} MB",
    }
    return "".join(f"{name:<21}{text}\n" for name, text in rows.items())


def _form(target: dict[str, Any]) -> str:
    """The form of the graphs, and what they were made for, if anything was named."""
    return "; ".join(part for part in (target["emit"], target["soc"], " ".join(target["isa"])) if part)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _median(spread: Percentiles | None, unit: str) -> str:
    return "-" if spread is None else f"{spread.p50:.2f} {unit}"
