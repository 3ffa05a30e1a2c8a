"""Operators that torch_npu lacks, or has without a GE form: their schemas, shapes and converters.

Those of CANN's operator package for DeepSeek-V4 have the package's schemas and names, where it is not
installed. Arguments that have their default do not reach a converter of TorchAir: each has the schema's own
defaults.
"""

from __future__ import annotations

import functools

from nextn.compile.targets.ascend.custom_ops import compressor, hyper_connection, sparse_attention


@functools.cache
def declare_custom_ops() -> None:
    """Makes the operators known to torch and to TorchAir. Needs torch_npu to be imported."""
    for module in (compressor, hyper_connection, sparse_attention):
        for operator in module.OPERATORS:
            operator.declare()
        module.register_converters()
