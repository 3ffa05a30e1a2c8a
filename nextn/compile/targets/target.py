"""`Target`: what graphs are compiled to; one subclass for each graph format, listed in `registry`.

A target's module is imported with the command's parser and by every worker: what compiles its graphs is
imported in the methods that need it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from nextn.runtime.contract import manifest
from nextn.runtime.contract.manifest import ComputeDtype, Device, Emit, ReturnedBlock

if TYPE_CHECKING:
    from rich.table import Table

    from nextn.compile.build.trace import TracedGraph
    from nextn.compile.build.worker import GraphJob
    from nextn.compile.targets.fused_op import FusedOp
    from nextn.graphs.session_shape import SessionShape

GRAPHS_FOLDER = "graphs"
WEIGHTS_FILE = "weights.safetensors"

CHECK_COMPILER = "--check-compiler="
"""In place of a job, with a target's name: asks a worker whether it can import what compiles the graphs."""


@dataclass(frozen=True)
class Flag:
    """A flag of the command line that a target declares.

    `settings` are argparse's. `check` takes the parsed arguments and the chosen target, whichever it is, and
    raises UsageError. A flag with a `command` asks for that instead of a compile: it takes the parsed
    arguments and those of an empty command line, and runs if the flag was given.
    """

    name: str
    settings: Mapping[str, Any]
    check: Callable[[argparse.Namespace, Target], None] | None = None
    command: Callable[[argparse.Namespace, argparse.Namespace], None] | None = None

    def value(self, arguments: argparse.Namespace) -> Any:
        """What was given, or the default."""
        return getattr(arguments, self.name.removeprefix("--").replace("-", "_"))


@dataclass(frozen=True)
class Tools:
    """What a target found on this machine to compile with.

    `compiler` names it and its version, and `cpu_features` are those that the graphs will need, for the
    manifest; `settings` are JSON values for the workers.
    """

    compiler: str
    cpu_features: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """What is to be recorded of a graph's file: the fused ops that its ops were given, where the target
    chooses among some, and the block that the graph returns, if it returns one."""

    fused_ops: Mapping[str, str] = field(default_factory=dict)
    returns: ReturnedBlock | None = None


class CaptureSummary(Protocol):
    """A dataclass of what a session will capture of the graphs, against the limits of the device."""

    @property
    def warning(self) -> str | None:
        """What the limits rule out."""

    def table(self) -> Table:
        """For the printed plan."""


@dataclass(frozen=True)
class Target:
    """A graph format, for one device, with the options of the command line that concern it alone.

    Fields are JSON values: a compile worker gets the target in its job.
    """

    name: ClassVar[Emit]
    """The manifest's `emit`."""
    devices: ClassVar[tuple[Device, ...]]
    suffix: ClassVar[str]
    """Of a graph's file."""
    weights_file: ClassVar[str] = WEIGHTS_FILE
    """Where an artifact keeps its weights."""
    flags: ClassVar[tuple[Flag, ...]] = ()
    runs_compiler: ClassVar[bool] = False
    """Whether workers start a C++ compiler, whose command lines take plain paths only."""
    own_entries: ClassVar[frozenset[str]] = frozenset()
    """Names that an artifact's folder may have for this target, beside those of every artifact."""
    fixed_ops: ClassVar[Mapping[str, str]] = {}
    """How every graph computes some ops, for the manifest; the others are plain aten operators."""

    device: Device
    soc: str | None = None
    """The chip whose limits the graphs keep, if one was named."""
    keeps_int8: bool = False
    """Whether int8 matrices of a checkpoint stay int8."""

    @classmethod
    def default_dtype(cls, device: str) -> ComputeDtype:
        """The compute dtype where none is asked for."""
        return "bfloat16"

    @classmethod
    def from_arguments(cls, device: Device, arguments: argparse.Namespace) -> Self:
        """The target that a command line describes. Raises UsageError for a flag's value."""
        return cls(device)

    @classmethod
    def import_compiler(cls) -> None:
        """Imports what compiles the graphs, in a worker. Raises ExecutionError if it does not load."""

    @classmethod
    def leftovers(cls, artifact: Path) -> list[Path]:
        """Files of a killed command in a published artifact, which may be removed."""
        return []

    def requires(self, ops: Mapping[str, str]) -> tuple[str, ...]:
        """What replay of the graphs needs, by a manifest's `ops`."""
        raise NotImplementedError

    @property
    def entry_rows_multiples(self) -> tuple[int, ...]:
        """`SessionShape.entry_rows_multiples` that the graphs need."""
        return (1,)

    @classmethod
    def graph_file(cls, key: str) -> str:
        """A graph's file inside an artifact."""
        return f"{GRAPHS_FOLDER}/{key}{cls.suffix}"

    def fused_ops(self) -> Sequence[FusedOp]:
        """Those that the target has for operators of the op layer."""
        return ()

    def recorded_options(self) -> dict[str, str]:
        """Options of the target that a manifest records among its ops."""
        return {}

    def unused_options(self, ops: Mapping[str, str]) -> Sequence[str]:
        """Operators that were named on the command line and that no graph calls, by a manifest's ops."""
        return ()

    def as_compiled(self, record: manifest.Target) -> manifest.Target:
        """A manifest's record as a compile wrote it, before a later command changed it."""
        return record

    def select_graphs(self, shape: SessionShape) -> tuple[Sequence[tuple[str, int]], CaptureSummary | None]:
        """The graphs to build, by name and batch size, and a summary where they will be captured.

        Raises UsageError for more graphs than the device can hold.
        """
        from nextn.graphs.phases import graph_keys

        return graph_keys(shape), None

    def tools(self) -> Tools:
        """What compiles the graphs here. Raises ExecutionError if it is missing, UsageError for a flag."""
        raise NotImplementedError

    def check_workers(self, worker_command: Sequence[str]) -> None:
        """Raises ExecutionError if workers could not compile; called before anything is written."""

    def worker_environment(self, scratch: Path) -> Mapping[str, str]:
        """Added to the environment of the workers, which share the folder `scratch`."""
        return {"OMP_NUM_THREADS": "1"}

    def write_graph(self, job: GraphJob, traced: TracedGraph) -> Written:
        """Compiles one traced graph and writes `job.output`; runs in a worker."""
        raise NotImplementedError

    def extra_files(self, graph_files: Sequence[str]) -> Mapping[str, str]:
        """Further text files of an artifact, by name; `graph_files` are relative to it."""
        return {}
