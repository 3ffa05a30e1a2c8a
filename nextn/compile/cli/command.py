"""What `nextn-compile CHECKPOINT` does once its options are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from rich.console import Console

from nextn.compile.build.builder import Summary, build_artifact
from nextn.compile.build.inputs import CompileInputs, checkpoint_folder, detect_toolchain
from nextn.compile.build.machine import Machine
from nextn.compile.build.plan import COMPILE_JOB_BYTES, Plan, make_plan, print_plan
from nextn.compile.build.pool import WORKER_COMMAND, worker_count
from nextn.compile.build.progress import Progress, readable_bytes, warn
from nextn.compile.cli.inspection import check_finite, inspect_checkpoint, print_inspection
from nextn.compile.cli.options import CompileOptions
from nextn.compile.cli.trace_report import peak_memory, print_reports, trace_graphs
from nextn.graphs.config import ModelConfig
from nextn.graphs.ops.linear import StoredLayout
from nextn.graphs.phases import graph_keys
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.errors import UsageError
from nextn.runtime.tool.interrupts import orderly
from nextn.weights.checkpoint import Checkpoint
from nextn.weights.config_json import read_model_config
from nextn.weights.content_checks import check_expert_tables, stated_layout_warning
from nextn.weights.pack_items import common_encoding
from nextn.weights.packed import packed_weights
from nextn.weights.text_files import check_text_files


def compile_command(
    options: CompileOptions, command: tuple[str, ...], worker_command: Sequence[str] = WORKER_COMMAND
) -> None:
    """Looks at the checkpoint, prints its plan and what tracing gives, or builds the artifact.

    Args:
        command: the command line, for the record in the manifest.
        worker_command: the program that compiles one graph.

    Raises the errors of `Checkpoint.open` and `build_artifact`, and UsageError for a model too short for
    the options.
    """
    if options.inspect or options.check_finite:
        _look(_opened(options), options)
        return
    checkpoint, config = _source(options)
    shape = _shape(options, checkpoint, config)
    plan = _plan(shape, options)
    if options.dry_run or options.trace_only:
        _show_plan(plan, shape, checkpoint, options)
        return
    assert checkpoint is not None and options.output is not None
    # The golden runs are thousands of small operators: a second thread only adds waiting (40 times the
    # seconds on a busy machine).
    torch.set_num_threads(1)
    inputs = CompileInputs(checkpoint, shape, options.target, detect_toolchain(options.target), command)
    try:
        with orderly():  # workers are ended, and what is finished is kept for the next run
            summary = build_artifact(
                inputs,
                plan,
                options.output,
                force=options.force,
                progress=Progress(),
                worker_command=worker_command,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; run the same command again to continue") from None
    if options.json:
        print(json.dumps(asdict(summary)))
    else:
        print(_one_line(summary))


def _source(options: CompileOptions) -> tuple[Checkpoint | None, ModelConfig]:
    """The checkpoint, checked for what the options ask of it, and its config; or a config alone."""
    if options.config_only is not None:
        config, warnings = read_model_config(options.config_only)
        for warning in warnings:
            warn(warning)
        return None, config
    checkpoint = _opened(options)
    checkpoint.require_nextn(options.num_steps)
    check_expert_tables(checkpoint)
    if (beyond := check_text_files(checkpoint.folder, checkpoint.config.vocab_size)) is not None:
        warn(beyond)
    return checkpoint, checkpoint.config


def _shape(options: CompileOptions, checkpoint: Checkpoint | None, config: ModelConfig) -> SessionShape:
    shape = options.session_shape(config)
    if not options.target.keeps_int8 or checkpoint is None:
        return shape
    return replace(shape, stored_layouts=_stored_layouts(checkpoint, shape))


def _stored_layouts(checkpoint: Checkpoint, shape: SessionShape) -> tuple[tuple[str, StoredLayout], ...]:
    """The matrices that are int8 rows in the checkpoint, by the names graphs give them."""
    layouts: list[tuple[str, StoredLayout]] = [
        (weight.name, "int8_row")
        for weight in packed_weights(shape.config, shape.num_steps > 0)
        if common_encoding(checkpoint, weight) == "int8_row"
    ]
    if not layouts:
        raise UsageError(
            "--weights-as stored keeps int8 matrices, and this checkpoint has none",
            file=checkpoint.folder,
            expected="int8 with a scale per row",
            found=checkpoint.layout.storage,
        )
    return tuple(layouts)


def _opened(options: CompileOptions) -> Checkpoint:
    """The checkpoint, after saying what is odd about it."""
    assert options.checkpoint is not None
    checkpoint = Checkpoint.open(
        checkpoint_folder(options.checkpoint),
        options.draft_folder,
        # To describe a checkpoint, damage of its draft is to be described too.
        draft_needed=options.num_steps > 0 and not options.inspect,
    )
    if (stated := stated_layout_warning(checkpoint)) is not None:
        checkpoint = replace(checkpoint, warnings=(*checkpoint.warnings, stated))
    looking = options.inspect or options.check_finite
    is_refused = options.num_steps > 0 and not looking and not checkpoint.has_nextn
    for warning in checkpoint.warnings:
        # The refusal says what the warning would.
        if not (is_refused and checkpoint.draft.found in warning):
            warn(warning)
    return checkpoint


def _look(checkpoint: Checkpoint, options: CompileOptions) -> None:
    """What the checkpoint is, what of it is not finite, or both; as JSON in one document."""
    document: dict[str, Any] = {}
    if options.inspect:
        buildable = options if checkpoint.has_nextn else replace(options, num_steps=0)
        shape = _shape(buildable, checkpoint, checkpoint.config)
        plan = _plan(shape, options)
        found = inspect_checkpoint(checkpoint, shape)
        document |= found.to_dict(plan)
        if not options.json:
            _print_rich(lambda console: print_inspection(found, plan, console))
    report = check_finite(checkpoint, Progress()) if options.check_finite else None
    if options.json:
        print(json.dumps(document | (report.to_dict() if report else {}), indent=1))
    elif report is not None:
        report.print()
    if report is not None:
        report.require_finite()


def _show_plan(
    plan: Plan, shape: SessionShape, checkpoint: Checkpoint | None, options: CompileOptions
) -> None:
    layout = {} if checkpoint is None else {"layout": str(checkpoint.layout)}
    if not options.json:
        if layout:
            print(f"{options.checkpoint}: {layout['layout']}")
        _print_rich(lambda console: print_plan(plan, console))
    reports = list(trace_graphs(shape, Progress())) if options.trace_only else []
    if options.json:
        traced = {"traced": [report.to_dict() for report in reports], "trace_peak_bytes": peak_memory()}
        print(json.dumps(plan.to_dict() | layout | (traced if reports else {}), indent=1))
    elif reports:
        _print_rich(lambda console: print_reports(reports, console))


def _print_rich(show: Callable[[Console], None]) -> None:
    """Prints what `show` prints; rich itself would end the process at a closed pipe."""
    console = Console(highlight=False)
    with console.capture() as printed:
        show(console)
    print(printed.get(), end="")


def _plan(shape: SessionShape, options: CompileOptions) -> Plan:
    plan = make_plan(shape, _compile_jobs(shape, options.jobs), options.target)
    if plan.capture is not None and plan.capture.warning is not None:
        warn(plan.capture.warning)
    return plan


def _compile_jobs(shape: SessionShape, requested: int | None) -> int:
    machine, graphs = Machine.measure(), len(graph_keys(shape))
    jobs = worker_count(graphs, COMPILE_JOB_BYTES, requested, machine)
    if requested is not None and jobs < min(requested, graphs):
        warn(
            f"--jobs {requested} is set to {jobs}: {readable_bytes(machine.memory)} of memory is free, "
            f"and a job may take {readable_bytes(COMPILE_JOB_BYTES)}"
        )
    return jobs


def _one_line(summary: Summary) -> str:
    if summary.up_to_date:
        return f"{summary.artifact} is up to date"
    kept = f", {summary.graphs_reused} kept from an interrupted run" if summary.graphs_reused else ""
    return (
        f"{summary.artifact}: {summary.graphs} graphs{kept}, {readable_bytes(summary.bytes)} "
        f"in {summary.seconds:.1f} s"
    )
