"""`RunOptions`: the command line of nextn-run, checked before anything is opened."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nextn.runtime import executors
from nextn.runtime.contract.errors import RequestError, UsageError
from nextn.runtime.engine.requests import DEFAULTS, checked_settings

Mode = Literal["generate", "selftest", "verify_weights", "info"]


@dataclass(frozen=True)
class PromptSource:
    """Where prompts come from: one flag and its value."""

    flag: Literal["prompt", "prompt_file", "token_ids", "requests"]
    value: str


@dataclass(frozen=True)
class RunOptions:
    """What to do with which artifact. `source` is set in mode "generate"; `device` and `executor` None mean
    the artifact's own."""

    artifact: Path
    mode: Mode
    source: PromptSource | None
    settings: dict[str, Any]
    speculation: bool
    phases: bool
    device: str | None
    executor: str | None
    stream: bool
    json: bool


def normalise(arguments: argparse.Namespace) -> RunOptions:
    """Raises UsageError for a bad value, a contradiction, or a feature that is not in this build."""
    if arguments.bench:
        raise UsageError("--bench is not in this build; --json prints the figures of a run")
    if arguments.executor not in (None, *executors.names()):
        expected = " or ".join(executors.names())
        raise UsageError(f"--executor {arguments.executor} is not in this build", expected=expected)
    if not arguments.artifact:
        raise UsageError("name an artifact folder")
    if arguments.phases and arguments.no_speculation:
        raise UsageError("--phases separates the phases of speculation; drop it or --no-speculation")
    mode, source = _mode_and_source(arguments)
    if arguments.stream and source is not None and source.flag == "requests" and not arguments.json:
        raise UsageError("--stream of several requests needs --json, which says whose text is whose")
    return RunOptions(
        artifact=Path(arguments.artifact),
        mode=mode,
        source=source,
        settings=_settings(arguments),
        speculation=not arguments.no_speculation,
        phases=arguments.phases,
        device=arguments.device,
        executor=arguments.executor,
        stream=arguments.stream,
        json=arguments.json,
    )


def _mode_and_source(arguments: argparse.Namespace) -> tuple[Mode, PromptSource | None]:
    modes: tuple[Mode, ...] = ("selftest", "verify_weights", "info")
    flags: tuple[Literal["prompt", "prompt_file", "token_ids", "requests"], ...] = (
        "prompt",
        "prompt_file",
        "token_ids",
        "requests",
    )
    chosen_modes = [mode for mode in modes if getattr(arguments, mode)]
    chosen_flags = [flag for flag in flags if getattr(arguments, flag) is not None]
    if len(chosen_modes) + len(chosen_flags) != 1:
        expected = ", ".join(_flag(name) for name in (*flags, *modes))
        found = " and ".join(_flag(name) for name in (*chosen_modes, *chosen_flags)) or "none"
        raise UsageError("say what to run", expected=f"one of {expected}", found=found)
    if chosen_modes:
        return chosen_modes[0], None
    return "generate", PromptSource(chosen_flags[0], getattr(arguments, chosen_flags[0]))


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    settings = {name: getattr(arguments, name) for name in DEFAULTS}
    try:
        return checked_settings(settings)
    except RequestError as error:
        flag = _flag(error.key or "")
        message = f"{flag}: bad value" if error.message == "bad request" else f"{flag}: {error.message}"
        raise UsageError(message, expected=error.expected, found=error.found) from error


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
