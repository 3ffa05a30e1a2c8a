"""One exported program to one AOTInductor shared object."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import sympy
import torch
import torch._inductor
from torch._inductor import compile_fx
from torch.export import ExportedProgram

from nextn.compile.targets.aoti.kernels import c_shims
from nextn.compile.targets.aoti.search_paths import safe_search_paths
from nextn.runtime.contract.errors import ExecutionError


def write_shared_object(
    program: ExportedProgram, output: Path, *, march: str, vector_bits: int | None
) -> None:
    """Compiles `program` for one thread, with weights and state left outside, and writes `output`.

    Call it in a process with the environment of `AotiTarget.worker_environment`; `march` and `vector_bits`
    are those of an `InstructionSet`. Raises ExecutionError if no library results.
    """
    torch.set_num_threads(1)
    output = output.absolute()
    # Inductor starts interpreters, which import modules from the folder that they are started in.
    with (
        chdir(tempfile.gettempdir()),
        torch.no_grad(),
        safe_search_paths(),
        _buffers_uncopied(),
        _expressions_simplified_once(),
    ):
        files = torch._inductor.aot_compile(
            program.module(check_guards=False), (), options=_inductor_options(march, vector_bits)
        )
    assert isinstance(files, list), "packaging returns the files it made"
    libraries = [str(file) for file in files if str(file).endswith(".so")]
    if len(libraries) != 1:
        raise ExecutionError("the compiler made no single library", expected="1 .so", found=len(libraries))
    shutil.copyfile(libraries[0], output)


@contextmanager
def _buffers_uncopied() -> Iterator[None]:
    """Inductor copies every buffer, so that its library starts from values no run has changed.

    Nothing runs here and the library holds no values; the copies would be the whole model, in memory.
    """
    # Through Any: the module does not declare the name as its own.
    module: Any = compile_fx
    copy = module.clone_preserve_strides
    module.clone_preserve_strides = lambda buffer: buffer
    try:
        yield
    finally:
        module.clone_preserve_strides = copy


@contextmanager
def _expressions_simplified_once() -> Iterator[None]:
    """Inductor simplifies the same index expressions again and again: 3500 calls for 470 in a `round`.

    Remembering the answers saves a sixth of its time, 39 s -> 33 s.
    """
    simplify = sympy.simplify
    sympy.simplify = functools.cache(simplify)
    try:
        yield
    finally:
        sympy.simplify = simplify


def _inductor_options(march: str, vector_bits: int | None) -> dict[str, object]:
    options: dict[str, object] = {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        # Line tables are three quarters of a library.
        "aot_inductor.enable_line_tables": False,
        # Precompiling costs more than it saves within one graph (measured 35 s with, 19 s without).
        "aot_inductor.precompile_headers": False,
        "aot_inductor.custom_ops_to_c_shims": c_shims(),
        # Inductor takes small or uniform buffers for constants; ours are state and inputs that change.
        "always_keep_tensor_constants": True,
        "joint_graph_constant_folding": False,
        "cpp.march": march,
    }
    if vector_bits is not None:
        options["cpp.simdlen"] = vector_bits
    return options
