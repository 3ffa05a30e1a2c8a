"""The flag `--weights-as`, whose `stored` only Ascend's fused ops have graphs for."""

from __future__ import annotations

import argparse

from nextn.compile.targets.target import Flag, Target
from nextn.runtime.contract.errors import UsageError


def _check_weights_as(arguments: argparse.Namespace, target: Target) -> None:
    """A graph computes in the dtype of its plain matrices; int8 needs a fused op that takes it."""
    weights_as, dtype = arguments.weights_as, arguments.dtype or target.default_dtype(target.device)
    if weights_as == "stored":
        if not any(fused.operator == "int8_linear" for fused in target.fused_ops()):
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


WEIGHTS_AS = Flag(
    "--weights-as",
    {
        "choices": ("stored", "bfloat16", "float32"),
        "help": "dtype of the weight matrices in the artifact (default: the compute dtype); stored: int8 "
        "matrices stay int8",
    },
    _check_weights_as,
)
