"""The architecture in the source tree: who imports whom, what is packaged, how large things are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

PRODUCT = REPOSITORY / "nextn"

CONTRACT = "nextn.runtime.contract"

TOOL = "nextn.runtime.tool"

ALLOWED = {
    "nextn": ("nextn.runtime",),
    CONTRACT: (CONTRACT,),
    TOOL: (TOOL, CONTRACT),
    "nextn.runtime": ("nextn.runtime",),
    "nextn.graphs": ("nextn.graphs", CONTRACT),
    "nextn.weights": ("nextn.weights", "nextn.graphs.config", "nextn.graphs.ops.rope", CONTRACT),
    "nextn.compile": ("nextn.compile", "nextn.graphs", "nextn.weights", CONTRACT, TOOL),
}
"""Prefixes of the modules of ours that a package may import."""

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def module_level_imports(file: Path, modules: set[str]) -> Iterator[str]:
    """Modules of the product that importing `file` imports; `from package import module` names the module."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


def product_files() -> Iterator[tuple[str, Path]]:
    """`(package, file)` of every Python file of the product: the most specific entry of `ALLOWED`."""
    for file in sorted(PRODUCT.rglob("*.py")):
        yield max((package for package in ALLOWED if within(module_name(file), package)), key=len), file


def repository_files() -> list[Path]:
    """Files that are, or would be, under version control."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git work tree")
    files = (REPOSITORY / line for line in listed.stdout.splitlines())
    return [file for file in files if file.is_file()]


FILES = list(product_files())
NAMES = [str(file.relative_to(REPOSITORY)) for _, file in FILES]
ORACLES = sorted((REPOSITORY / "tests" / "oracles").rglob("*.py"))


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield node.module or ""


@pytest.mark.parametrize(("package", "file"), FILES, ids=NAMES)
def test_imports_follow_the_arrows(package: str, file: Path) -> None:
    for module in imported_modules(file):
        top = module.partition(".")[0]
        assert top not in ("demo", "tests"), module
        if top == "nextn":
            assert any(within(module, prefix) for prefix in ALLOWED[package]), module
        in_executors = file.is_relative_to(PRODUCT / "runtime" / "executors")
        if package in (CONTRACT, TOOL, "nextn.runtime", "nextn") and not in_executors:
            assert top != "torch", f"{module}: an artifact replays where torch need not be imported"
        if package == CONTRACT:
            assert top in sys.stdlib_module_names or top == "nextn", module


def test_no_import_cycles() -> None:
    """Imports at module level; what a function imports when it runs cannot bite its own tail."""
    modules = {module_name(file): file for _, file in FILES}
    imports = {
        name: {target for target in module_level_imports(file, set(modules)) if target != name}
        for name, file in modules.items()
    }
    TopologicalSorter(imports).prepare()


@pytest.mark.parametrize("file", ORACLES, ids=lambda file: file.name)
def test_oracles_know_nothing_of_the_product(file: Path) -> None:
    """What judges the code under test is not made of it, also not by way of another test module."""
    for module in imported_modules(file):
        assert not within(module, "nextn"), module
        assert not within(module, "tests") or within(module, "tests.oracles"), module


EXECUTORS = [module_name(file) for file in sorted((PRODUCT / "runtime" / "executors").glob("[a-z]*.py"))]
"""They run graphs with torch or another package, and import it when the first graph needs it."""


@pytest.mark.parametrize(
    "module",
    [
        "nextn",
        "nextn.runtime.cli.command",
        "nextn.compile.cli.arguments",
        "nextn.runtime.executors",
        *EXECUTORS,
    ],
)
def test_importing_is_light(module: str) -> None:
    """In a fresh interpreter none of these pulls in torch, and `nextn` pulls in nothing of its own."""
    heavy = "m in ('torch', 'onnxruntime') or m.startswith('nextn.')"
    code = f"import {module}, sys; print([m for m in sys.modules if {heavy}])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ast.literal_eval(run.stdout)
    assert not {"torch", "onnxruntime"} & set(loaded)
    if module == "nextn":
        assert loaded == []


@pytest.mark.parametrize("module", ["nextn.runtime.cli", "nextn.compile.cli"])
def test_a_command_handles_ctrl_c_before_it_imports_the_rest(module: str) -> None:
    code = f"import {module}, sys; print([m for m in sys.modules if m.startswith('nextn.')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light = {"nextn.runtime", CONTRACT, f"{CONTRACT}.errors", TOOL, f"{TOOL}.interrupts", f"{TOOL}.run_tool"}
    assert set(ast.literal_eval(run.stdout)) <= {module, module.removesuffix(".cli"), *light}


def test_every_folder_with_python_is_packaged() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert project["tool"]["scikit-build"]["wheel"]["packages"] == ["nextn"]
    folders = {file.relative_to(REPOSITORY).parts[0] for file in repository_files() if file.suffix == ".py"}
    assert folders == {"nextn", "tests", "benchmarks", "demo"}
    for folder in {file.parent for _, file in FILES}:
        assert (folder / "__init__.py").is_file(), f"{folder} is no package"


@pytest.mark.parametrize(("package", "file"), FILES, ids=NAMES)
def test_files_and_functions_stay_small(package: str, file: Path) -> None:
    text = file.read_text()
    assert text.count("\n") <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


TEXT_SUFFIXES = {".c", ".cpp", ".h", ".hpp", ".md", ".py", ".toml", ".txt", ""}
MACHINE_PATH = re.compile(r"/(work|root|home|Users|tmp)/|/(opt|mnt)/[a-z]")


def test_no_machine_paths() -> None:
    for file in repository_files():
        if file.suffix in TEXT_SUFFIXES and "third_party" not in file.parts:
            found = MACHINE_PATH.search(file.read_text(errors="replace"))
            assert found is None, f"{file}: {found.group() if found else ''}"
