"""Generic code of nextn-compile knows targets by `Target` and the registry alone."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import nextn.compile
import nextn.graphs.phases  # noqa: F401  every operator is made
from nextn.compile.targets.fused_op import chosen_ops, known_ops
from nextn.compile.targets.registry import TARGETS, default_targets
from nextn.graphs.ops.operator import OPERATORS, short_name

COMPILE = Path(nextn.compile.__path__[0])
TARGETS_FOLDER = COMPILE / "targets"
GENERIC = sorted(
    [*(COMPILE / "cli").glob("*.py"), *(COMPILE / "build").glob("*.py")]
    + [TARGETS_FOLDER / f"{name}.py" for name in ("target", "fused_op", "functional")]
)

GENERIC_MODULES = {
    f"nextn.compile.targets.{name}" for name in ("target", "registry", "fused_op", "functional")
}

WORDS = re.compile(
    r"\b(cuda|npu|gpu|nvidia|aoti|aotinductor|inductor|pt2|onnx|onnxruntime|air|om|ge|ascend\w*|cann|torch_npu"
    r"|torchair|910\w*|950\w*|soc_version|avx\w*|amx\w*|opset|libnextn_ops|libascendcl)\b",
    re.IGNORECASE,
)


def words_of(text: str) -> Iterator[str]:
    """Names, texts and comments of a Python file, with the parts of a name apart."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT):
            yield token.string
            yield token.string.replace("_", " ")


@pytest.mark.parametrize("file", GENERIC, ids=lambda file: str(file.relative_to(COMPILE)))
def test_generic_files_name_no_target(file: Path) -> None:
    text = file.read_text()
    named = [found.group() for word in words_of(text) for found in WORDS.finditer(word)]
    assert not named
    for node in ast.walk(ast.parse(text)):
        # The build machine has CPUs, as a control group calls them; no text is the device's name.
        if isinstance(node, ast.Constant) and node.value == "cpu":
            assert file.name == "machine.py"
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for module in modules:
            of_targets = [part for part in [module] if part.startswith("nextn.compile.targets.")]
            assert all(
                part.rsplit(".", 1)[0] in GENERIC_MODULES or part in GENERIC_MODULES for part in of_targets
            )


def test_the_words_are_found() -> None:
    """The test above can fail."""
    for line in ('device = "npu"', "is_npu = 1", "# as atc of CANN", "ONNX = 1", 'emit == "air"', "avx2 = 1"):
        assert any(WORDS.search(word) for word in words_of(line + "\n")), line


LIGHT = "import {module}, sys; print([m for m in sys.modules if m.partition('.')[0] in {heavy}])"
HEAVY = {"torch", "onnx", "onnxruntime", "torch_npu", "torchair", "sympy", "numpy"}


def test_the_registry_imports_no_compiler() -> None:
    code = LIGHT.format(module="nextn.compile.targets.registry", heavy=HEAVY)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_defaults_of_devices() -> None:
    assert {device: target.name for device, target in default_targets().items()} == {
        "cpu": "aoti",
        "cuda": "pt2",
        "npu": "pt2",
    }


@pytest.mark.parametrize("name", TARGETS)
def test_what_depends_on_a_graph_is_not_known_before(name: str) -> None:
    """A manifest's record of an op that a fused op may be chosen for is not part of what was asked for."""
    operators = {short_name(operator) for operator in OPERATORS}
    for device in TARGETS[name].devices:
        target = TARGETS[name](device)
        fused_ops = target.fused_ops()
        known = known_ops(fused_ops, target.fixed_ops)
        for fused in fused_ops:
            assert fused.operator in operators
            assert (fused.op in known) == (fused.guard is None), fused.name
            assert (fused.op in chosen_ops(fused_ops)) == (fused.guard is not None)
    assert known["write_rows"] == {"onnx": "scatter_nd", "air": "scatter_nd_update"}.get(name, "plain")
    kernels = {op for op, recorded in known.items() if recorded == "native"}
    assert kernels == ({"sinkhorn", "sample_token", "topk_entries"} if name == "aoti" else set())
