"""What all tests share: compiled artifacts, and loaded shape cases."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import torch

from nextn.compile.build import builder
from nextn.compile.cli import main as nextn_compile
from nextn.runtime.contract.errors import ExitCode
from tests.compile.in_process import run_in_process
from tests.oracles.case_oracle import make_oracle
from tests.oracles.published_layouts import write_layout
from tests.oracles.synthetic import CASES, QUICK, random_weights, write_checkpoint
from tests.rounds.product import Product

if TYPE_CHECKING:
    from tests.onnx_sessions import Exported

REPOSITORY = Path(__file__).parents[1]

GRAPH_BUDGET = 22
"""Compiled graphs that `make test` may need; each takes most of a minute when nothing is cached."""


def pytest_configure() -> None:
    """Tests send Ctrl-C to children, which would ignore it if a shell started pytest in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Recipe:
    """A checkpoint and the options it is compiled with.

    The checkpoint is `demo`, a shape case or `quick` by name, or `CASE as LAYOUT` with a published layout.
    """

    checkpoint: str
    options: tuple[str, ...]


BUCKETS = ("--batch-sizes", "1,4", "--max-seq-len", "512", "--prefill-chunk", "16")

RECIPES = {
    "speculative": Recipe("quick", BUCKETS),
    "plain": Recipe(
        "quick", ("--speculative-num-steps", "0", "--max-seq-len", "512", "--prefill-chunk", "16")
    ),
    "demo": Recipe("demo", ()),
    # Exported programs for an NPU, in the dtype in which results can be compared to the modules'.
    "exported": Recipe(
        "quick",
        ("--device", "npu", "--dtype", "float32", "--speculative-num-steps", "2", "--batch-sizes", "2")
        + ("--max-seq-len", "192", "--prefill-chunk", "16"),
    ),
    "exported_cuda": Recipe(
        "tiny",
        ("--device", "cuda", "--dtype", "float32", "--speculative-num-steps", "2", "--batch-sizes", "1,2")
        + ("--max-seq-len", "192", "--prefill-chunk", "16"),
    ),
}

FEW_GRAPHS = ("--batch-sizes", "2", "--max-seq-len", "192", "--prefill-chunk", "16")
"""One bucket; prompts of several chunks, past one C128 block."""


def _few(checkpoint: str, steps: int, *options: str) -> Recipe:
    return Recipe(checkpoint, (*FEW_GRAPHS, "--speculative-num-steps", str(steps), *options))


def _onnx(checkpoint: str, steps: int) -> Recipe:
    return Recipe(checkpoint, (*BUCKETS, "--emit", "onnx", "--speculative-num-steps", str(steps)))


MATRIX = {
    "steps_1": _few("tiny", 1),
    "steps_8": _few("tiny", 8),
    "two_streams": _few("two_streams", 5),
    "three_streams": _few("three_streams", 3),
    "release_window": _few("release_window", 3),
    "pro_like": _few("pro_like", 3),
    "bfloat16": _few("tiny", 3, "--dtype", "bfloat16"),
    "avx2": _few("tiny", 2, "--isa", "avx2"),
    "release_layout": _few("tiny as release", 1),
    "modelslim_layout": _few("tiny as modelslim", 1),
    "onnx_steps_1": _onnx("tiny", 1),
    "onnx_steps_2": _onnx("tiny", 2),
    "onnx_steps_3": _onnx("quick", 3),
}
"""Compiled in the full run only: depths, unlike shapes, layouts, another dtype, instruction set, executor."""


class CompiledArtifacts:
    """Artifacts by recipe name, kept in build/ between runs.

    `nextn-compile` itself decides whether a kept one still has the same inputs, sources and toolchain.
    """

    def __init__(self, checkpoints: Path, folder: Path, budget: int | None) -> None:
        self._checkpoints = checkpoints
        self._folder = folder
        self._budget = budget
        self._made: dict[str, Path] = {}

    def __call__(self, name: str) -> Path:
        if name not in self._made:
            output = self._folder / name
            self._compile({**RECIPES, **MATRIX}[name], output)
            self._made[name] = output
            self._check_budget()
        return self._made[name]

    def _compile(self, recipe: Recipe, output: Path) -> None:
        command = [self.checkpoint(recipe.checkpoint), "-o", str(output), "--force", *recipe.options]
        exports = "--device" in recipe.options
        with mock.patch.object(builder, "run_workers", run_in_process if exports else builder.run_workers):
            code = nextn_compile(command)
        assert code == ExitCode.OK, f"nextn-compile {' '.join(command)} failed"

    def checkpoint(self, name: str) -> str:
        """The CHECKPOINT argument of a recipe's checkpoint; written when first asked for."""
        case, _, layout = name.partition(" as ")
        if case not in (*CASES, QUICK.name):
            return name
        folder = self._checkpoints / name.replace(" ", "_")
        if not folder.exists():
            config = (QUICK if case == QUICK.name else CASES[case]).config
            weights = random_weights(config, seed=7)
            if layout:
                weights = write_layout(folder, layout, config, weights)
            write_checkpoint(self._twin(folder) if layout else folder, config, weights)
        return str(folder)

    def reference(self, name: str) -> Path:
        """A folder with the same weights as `checkpoint(name)` in float32, for the references to load."""
        folder = Path(self.checkpoint(name))
        return self._twin(folder) if self._twin(folder).exists() else folder

    @staticmethod
    def _twin(folder: Path) -> Path:
        return folder.with_name(f"{folder.name}_twin")

    def _check_budget(self) -> None:
        manifests = [json.loads((path / "manifest.json").read_text()) for path in self._made.values()]
        compiled = [manifest for manifest in manifests if manifest["target"]["emit"] == "aoti"]
        graphs = sum(len(manifest["graphs"]) for manifest in compiled)
        if self._budget is not None and graphs > self._budget:
            pytest.fail(f"the tests compile {graphs} graphs; `make test` may need {self._budget}")


@pytest.fixture(scope="session")
def compiled_artifact(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CompiledArtifacts:
    """`compiled_artifact(name)` -> folder of an artifact compiled by one of `RECIPES` or `MATRIX`."""
    exhaustive = request.config.option.markexpr != "not full"
    return CompiledArtifacts(
        tmp_path_factory.mktemp("checkpoints"),
        REPOSITORY / "build" / "test-artifacts",
        None if exhaustive else GRAPH_BUDGET,
    )


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """What a speculative session of a small model launches, as ONNX: k = 2, batch 2."""
    # Not every environment that tests run in has ONNX Runtime.
    from tests.onnx_sessions import export_small

    return export_small(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="session", autouse=True)
def eager_torch() -> Iterator[None]:
    """Matrices this small only lose time to a second thread, and nothing here is trained."""
    torch.set_num_threads(1)
    # A quarter of the time that an export takes.
    torch.fx.config.do_not_emit_stack_traces = True
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def product_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Product]:
    """Named cases, each written in a dtype and loaded once; the sweeps over `tiny` run what is lowered."""
    made: dict[tuple[str, torch.dtype], Product] = {}

    def get(name: str, dtype: torch.dtype = torch.float32) -> Product:
        if (name, dtype) not in made:
            folder = tmp_path_factory.mktemp(name)
            oracle = make_oracle(folder, name, dtype=dtype)
            made[name, dtype] = Product.load(oracle, exported=name == "tiny")
        return made[name, dtype]

    return get
