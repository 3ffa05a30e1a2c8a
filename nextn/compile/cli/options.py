"""`CompileOptions`: the command line of nextn-compile, normalised and checked before anything is opened."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path

from nextn.compile.targets.ascend.fused_ops.blocks import ENTRY_ROWS_MULTIPLES
from nextn.compile.targets.ascend.fused_ops.choice import BLOCK_READERS, CUSTOM_OPS
from nextn.compile.targets.lowering import (
    DEFAULT_EMIT,
    DEFAULT_OPSET,
    LOWERINGS,
    NEWEST_OPSET,
    NPU,
    NPU_FUSED,
    Lowering,
)
from nextn.graphs.config import ModelConfig
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.blocks import MAX_STEPS
from nextn.runtime.contract.errors import UsageError

DEFAULT_MAX_SEQ_LEN = 4096
LARGEST_BATCH = 1024


@dataclass(frozen=True)
class CompileOptions:
    """What to compile: a checkpoint folder, or for planning and tracing just its config.

    `max_seq_len` None means min(4096, the model's); `jobs` None means automatic; `soc` None means that no
    chip's limits are kept.
    """

    checkpoint: str | None
    draft_folder: Path | None
    config_only: Path | None
    output: Path | None
    lowering: Lowering
    dtype: str
    stored_weights: bool
    custom_ops: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    max_seq_len: int | None
    prefill_chunk: int
    num_steps: int
    isa: str
    soc: str | None
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
            entry_rows_multiples=(1,) if BLOCK_READERS.isdisjoint(self.custom_ops) else ENTRY_ROWS_MULTIPLES,
        )


def normalise(arguments: argparse.Namespace) -> tuple[CompileOptions, list[str]]:
    """Checks parsed arguments; returns the options and warnings for the user.

    Raises UsageError for a value out of range and for a flag whose feature is not in this build.
    """
    lowering = _lowering(arguments)
    _check_source(arguments)
    dtype = arguments.dtype or lowering.dtype
    _check_weights_as(arguments, dtype, lowering)
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
        lowering=lowering,
        dtype=dtype,
        stored_weights=arguments.weights_as == "stored",
        custom_ops=_custom_ops(arguments.npu_custom_ops, lowering),
        batch_sizes=_batch_sizes(arguments.batch_sizes),
        max_seq_len=_optional("--max-seq-len", arguments.max_seq_len, 2, 2**31 - 1),
        prefill_chunk=_within("--prefill-chunk", arguments.prefill_chunk, 1, 65536),
        num_steps=steps,
        isa=arguments.isa,
        soc=_soc(arguments, lowering),
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


def _check_weights_as(arguments: argparse.Namespace, dtype: str, lowering: Lowering) -> None:
    """A graph computes in the dtype that its plain matrices have; codes need a lowering that takes them."""
    weights_as = arguments.weights_as
    if weights_as == "stored":
        if not lowering.chosen_ops:
            raise UsageError(
                "--weights-as stored keeps int8 codes, for which --device npu has graphs, with --emit air or "
                "--npu-fused; elsewhere weights are dequantised when they are packed",
                expected=dtype,
                found=weights_as,
            )
        if arguments.config_only is not None:
            raise UsageError("--weights-as stored asks a checkpoint what is stored; --config-only has none")
    elif weights_as is not None and weights_as != dtype:
        raise UsageError(
            "graphs compute in the dtype of their matrices: --dtype and --weights-as must agree",
            expected=dtype,
            found=weights_as,
        )


def _custom_ops(text: str | None, lowering: Lowering) -> tuple[str, ...]:
    if text is None:
        return ()
    if lowering.emit != "air":
        raise UsageError(
            "--npu-custom-ops names operators of GE IR, which --device npu --emit air writes",
            found=f"--device {lowering.device} --emit {lowering.emit}",
        )
    names = () if text == "none" else tuple(sorted(set(text.split(","))))
    for name in names:
        if name not in CUSTOM_OPS:
            expected = f"none, or names among {','.join(CUSTOM_OPS)}"
            raise UsageError("unknown --npu-custom-ops", expected=expected, found=repr(name))
    return names


def _lowering(arguments: argparse.Namespace) -> Lowering:
    """What `--device` and `--emit` choose. Raises UsageError for what this build does not implement."""
    emit = arguments.emit or DEFAULT_EMIT[arguments.device]
    lowering = LOWERINGS.get((arguments.device, emit))
    if lowering is None:
        asked = f"--device {arguments.device} --emit {emit}"
        built = " or ".join(f"--device {device} --emit {emit}" for device, emit in LOWERINGS)
        raise UsageError(f"{asked} is not in this build", expected=built)
    if lowering.emit != "aoti" and arguments.isa != "native":
        raise UsageError(
            "--isa chooses instructions of a CPU", expected="--emit aoti", found=f"--emit {lowering.emit}"
        )
    if arguments.npu_fused:
        if lowering.device != "npu":
            raise UsageError("--npu-fused chooses operators of an NPU", found=f"--device {lowering.device}")
        lowering = NPU_FUSED if lowering is NPU else lowering
    return _with_opset(lowering, arguments.opset)


def _with_opset(lowering: Lowering, opset: int | None) -> Lowering:
    if opset is None:
        return lowering
    if lowering.opset is None:
        raise UsageError(
            "--opset is an operator set of ONNX", expected="--emit onnx", found=f"--emit {lowering.emit}"
        )
    return replace(lowering, opset=_within("--opset", opset, DEFAULT_OPSET, NEWEST_OPSET))


def _soc(arguments: argparse.Namespace, lowering: Lowering) -> str | None:
    """Its limits are of what is captured when an artifact is loaded; other graphs have none."""
    if arguments.soc is not None and (lowering.device, lowering.emit) != ("npu", "pt2"):
        raise UsageError(
            "--soc names the chip that captures graphs",
            expected="--device npu --emit pt2",
            found=arguments.soc,
        )
    soc: str | None = arguments.soc
    return soc


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
