"""Ascend's fused ops.

A fused op stands where its guard holds, by shapes, dtypes and attributes; elsewhere the plain aten operators
do. What an operator of torch_npu or CANN computes is taken from their published descriptions; nothing here
ran on an NPU. Inputs are widened where an operator would round inside and the plain operators do not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nextn.compile.targets.ascend.fused_ops import attention, compress, hyper_connection, moe, row_wise
from nextn.compile.targets.fused_op import FusedOp

FUSED_OPS: tuple[FusedOp, ...] = (
    *row_wise.FUSED_OPS,
    *moe.FUSED_OPS,
    *hyper_connection.FUSED_OPS,
    *attention.FUSED_OPS,
    *compress.FUSED_OPS,
)

CUSTOM_OPS = tuple(sorted({name for fused in FUSED_OPS for name in fused.custom_ops}))
"""Operators that a fused op calls if a user names them, by GE type: those of packages beside torch_npu's own,
and one that may choose otherwise than the plain operators."""


def offered(custom_ops: Collection[str] = ()) -> list[FusedOp]:
    """The fused ops that call no operators of `CUSTOM_OPS` but these."""
    return [fused for fused in FUSED_OPS if set(fused.custom_ops) <= set(custom_ops)]


def reads_blocks(custom_ops: Collection[str]) -> bool:
    """Whether a fused op that these operators are for wants whole blocks of entries."""
    return any(fused.reads_blocks and not set(custom_ops).isdisjoint(fused.custom_ops) for fused in FUSED_OPS)


def uncalled(custom_ops: Collection[str], ops: Mapping[str, str]) -> list[str]:
    """Those of `custom_ops` that no fused op which a manifest's `ops` lists would call."""
    taken = {name for names in ops.values() for name in names.split(", ")}
    called = {operator for fused in FUSED_OPS if fused.name in taken for operator in fused.custom_ops}
    return [name for name in custom_ops if name not in called]
