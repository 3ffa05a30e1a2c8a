"""`CompileOptions`: the command line of nextn-compile, normalised and checked before anything is opened."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from nextn.compile.targets.registry import TARGETS, default_targets, device_targets, flags
from nextn.compile.targets.target import Target
from nextn.graphs.config import ModelConfig
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.blocks import MAX_STEPS
from nextn.runtime.contract.errors import UsageError
from nextn.runtime.contract.manifest import Device

DEFAULT_MAX_SEQ_LEN = 4096
LARGEST_BATCH = 1024


@dataclass(frozen=True)
class CompileOptions:
    """What to compile: a checkpoint folder, or for planning and tracing just its config.

    `max_seq_len` None means min(4096, the model's); `jobs` None means automatic.
    """

    checkpoint: str | None
    draft_folder: Path | None
    config_only: Path | None
    output: Path | None
    target: Target
    dtype: str
    batch_sizes: tuple[int, ...]
    max_seq_len: int | None
    prefill_chunk: int
    num_steps: int
    jobs: int | None
    dry_run: bool
    trace_only: bool
    inspect: bool
    check_finite: bool
    force: bool
    json: bool

    def session_shape(self, config: ModelConfig) -> SessionShape:
        """The shapes these options give a model. Raises UsageError if the model is too short for them."""
        longest = config.max_position_embeddings
        length = min(DEFAULT_MAX_SEQ_LEN, longest) if self.max_seq_len is None else self.max_seq_len
        if length > longest:
            raise UsageError(
                "--max-seq-len is beyond the model's max_position_embeddings",
                expected=f"2..{longest}",
                found=length,
            )
        return SessionShape(
            config=config,
            dtype=self.dtype,
            num_steps=self.num_steps,
            batch_sizes=self.batch_sizes,
            max_seq_len=length,
            prefill_chunk=self.prefill_chunk,
            entry_rows_multiples=self.target.entry_rows_multiples,
        )


def normalise(arguments: argparse.Namespace) -> tuple[CompileOptions, list[str]]:
    """Checks parsed arguments; returns the options and warnings for the user.

    Raises UsageError for a value out of range and for a flag whose feature is not in this build.
    """
    target = _target(arguments)
    _check_source(arguments)
    for flag in flags():
        if flag.check is not None:
            flag.check(arguments, target)
    steps = _within("--speculative-num-steps", arguments.speculative_num_steps, 0, MAX_STEPS)
    if arguments.speculative_eagle_topk != 1:
        raise UsageError(
            "--speculative-eagle-topk must be 1: a round verifies one chain of drafts, and a tree would need "
            "a data-dependent attention mask and cache order",
            found=arguments.speculative_eagle_topk,
        )
    warnings = []
    window = arguments.speculative_num_draft_tokens
    if window is not None and window != steps + 1:
        warnings.append(
            f"--speculative-num-draft-tokens {window} is set to {steps + 1}: with topk 1 it is always "
            "--speculative-num-steps + 1"
        )
    draft = arguments.speculative_draft_model_path
    if draft is not None and steps == 0 and not arguments.inspect:
        warnings.append("--speculative-draft-model-path is not read: --speculative-num-steps is 0")
        draft = None
    options = CompileOptions(
        checkpoint=arguments.checkpoint,
        draft_folder=None if draft is None else Path(draft),
        config_only=None if arguments.config_only is None else Path(arguments.config_only),
        output=None if arguments.output is None else Path(arguments.output),
        target=target,
        dtype=arguments.dtype or target.default_dtype(target.device),
        batch_sizes=_batch_sizes(arguments.batch_sizes),
        max_seq_len=_optional("--max-seq-len", arguments.max_seq_len, 2, 2**31 - 1),
        prefill_chunk=_within("--prefill-chunk", arguments.prefill_chunk, 1, 65536),
        num_steps=steps,
        jobs=_optional("--jobs", arguments.jobs, 1, 1024),
        dry_run=arguments.dry_run,
        trace_only=arguments.trace_only,
        inspect=arguments.inspect,
        check_finite=arguments.check_finite,
        force=arguments.force,
        json=arguments.json,
    )
    return options, warnings


def _check_source(arguments: argparse.Namespace) -> None:
    """One source, and something to do with it that the source is enough for."""
    plan_only = arguments.dry_run or arguments.trace_only
    look_only = arguments.inspect or arguments.check_finite
    _check_looking(arguments)
    for flag in ("--config-only", "--speculative-draft-model-path"):
        if getattr(arguments, _field(flag)) == "":
            raise UsageError(f"{flag} is empty, which would mean the current folder")
    if arguments.config_only is None:
        if not arguments.checkpoint:
            raise UsageError("name a checkpoint folder, or `demo` for the bundled one")
        if not arguments.output and (arguments.output is not None or not (plan_only or look_only)):
            raise UsageError("-o ARTIFACT is required (or --dry-run)")
        return
    if arguments.checkpoint is not None:
        raise UsageError(
            "--config-only stands in for a checkpoint", expected="one of them", found=arguments.checkpoint
        )
    if look_only or arguments.speculative_draft_model_path is not None:
        raise UsageError("--config-only has no tensors to look at: name a checkpoint folder")
    if not plan_only:
        raise UsageError("--config-only has no weights to compile: add --dry-run or --trace-only")


def _check_looking(arguments: argparse.Namespace) -> None:
    """A flag that would do nothing is refused: what was meant by it is not what happens."""
    used = [
        flag for flag in ("--inspect", "--check-finite", "--trace-only") if getattr(arguments, _field(flag))
    ]
    idle = ["--dry-run"] if used == ["--trace-only"] else ["--dry-run", "--trace-only", "--output", "--force"]
    for flag in idle if used else []:
        if flag not in used[:1] and getattr(arguments, _field(flag)):
            raise UsageError(f"{used[0]} only looks: {flag} would do nothing", expected="one of them")


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _target(arguments: argparse.Namespace) -> Target:
    """What `--device` and `--emit` choose. Raises UsageError for what this build does not implement."""
    device = arguments.device
    emit = arguments.emit or default_targets()[device].name
    if (device, TARGETS[emit]) not in device_targets():
        built = " or ".join(f"--device {one} --emit {target.name}" for one, target in device_targets())
        raise UsageError(f"--device {device} --emit {emit} is not in this build", expected=built)
    return TARGETS[emit].from_arguments(cast(Device, device), arguments)


def _batch_sizes(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(re.fullmatch("[+-]?[0-9]{1,20}", part.strip()) for part in parts):
        raise UsageError("--batch-sizes takes integers separated by commas", expected="1,2,4", found=text)
    return tuple(sorted({_within("--batch-sizes", int(part), 1, LARGEST_BATCH) for part in parts}))


def _optional(flag: str, value: int | None, low: int, high: int) -> int | None:
    return None if value is None else _within(flag, value, low, high)


def _within(flag: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise UsageError(f"{flag} is out of range", expected=f"{low}..{high}", found=value)
    return value
