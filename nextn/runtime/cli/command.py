"""What `nextn-run` does: continue prompts with an artifact, or check and describe it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from nextn.runtime import executors
from nextn.runtime.bindings.model import Model
from nextn.runtime.cli import json_output
from nextn.runtime.cli.arguments import parse_arguments
from nextn.runtime.cli.options import PromptSource, RunOptions, normalise
from nextn.runtime.cli.reports import info_object, info_text
from nextn.runtime.cli.request_source import read_requests
from nextn.runtime.cli.result_writer import JsonWriter, ResultWriter, TextWriter
from nextn.runtime.contract.errors import ExitCode
from nextn.runtime.engine.api import Engine, load
from nextn.runtime.engine.completion import Completion
from nextn.runtime.engine.interruptible import run_interruptibly
from nextn.runtime.engine.requests import Request
from nextn.runtime.tool.interrupts import orderly

Opened = TypeVar("Opened", Engine, Model)


def run_command(arguments: Sequence[str]) -> ExitCode:
    """Does what the command line says; raises NextnError."""
    return _execute(normalise(parse_arguments(arguments)))


def _execute(options: RunOptions) -> ExitCode:
    if options.source is not None:
        return _generate(options, options.source)
    with _open(
        lambda: Model(options.artifact, verify_weights=options.mode != "info", device=options.device)
    ) as model:
        executors.check(model, options.executor)
        if options.mode == "selftest":
            return run_interruptibly(lambda: _selftest(options, model), lambda: None)
        if options.mode == "info":
            _show_info(options, model)
        else:
            _show_verified(options, model)
    return ExitCode.OK


def _generate(options: RunOptions, source: PromptSource) -> ExitCode:
    several = source.flag == "requests"
    with _open(
        lambda: load(
            options.artifact,
            speculation=options.speculation,
            phases=options.phases,
            executor=options.executor,
            device=options.device,
        )
    ) as engine:
        writer: ResultWriter = JsonWriter() if options.json else TextWriter(headed=several)
        read = read_requests(source, engine.request_reader(**options.settings))
        return _run(engine, read, writer, stream=options.stream)


def _run(
    engine: Engine, read: Sequence[Request | Completion], writer: ResultWriter, *, stream: bool
) -> ExitCode:
    refused = [entry for entry in read if isinstance(entry, Completion)]
    for completion in refused:
        writer.completion(completion)
    with orderly():  # what is unfinished is still printed, as aborted
        run = engine.run(
            [entry for entry in read if isinstance(entry, Request)],
            on_delta=writer.delta if stream else None,
            on_completion=writer.completion,
        )
    writer.summary(run.metrics, len(refused))
    failures = [entry.error for entry in (*refused, *run.completions) if entry.error is not None]
    return ExitCode(max((failure.code for failure in failures), default=ExitCode.OK))


def _open(opening: Callable[[], Opened]) -> Opened:
    """Opens on another thread: native code may hash for minutes, and must not keep Ctrl-C waiting."""
    return run_interruptibly(opening, lambda: None)


def _selftest(options: RunOptions, model: Model) -> ExitCode:
    # Only this mode needs numpy, which takes longer to import than all the rest.
    from nextn.runtime.selftest.command import run_selftest

    return run_selftest(model, as_json=options.json)


def _show_info(options: RunOptions, model: Model) -> None:
    if options.json:
        sys.stdout.write(json_output.line({"info": info_object(model)}))
    else:
        sys.stdout.write(info_text(model))


def _show_verified(options: RunOptions, model: Model) -> None:
    size = model.info.weight_bytes
    if options.json:
        sys.stdout.write(json_output.line({"verify_weights": {"passed": True, "bytes": size}}))
    else:
        print(f"weights verified: {size} bytes")
