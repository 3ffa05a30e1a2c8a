"""Fused ops: what a target has in place of the aten operators of an operator of the op layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

import nextn.graphs.ops  # noqa: F401  defines every operator
from nextn.graphs.ops.operator import OPERATORS, short_name

Functions = Mapping[torch._ops.OpOverload, Callable[..., Any]]
"""What takes the place of each of our operators: a function of its arguments, made of other operators."""

NO_FUNCTIONS: Functions = MappingProxyType({})

PLAIN = "plain"
"""How a manifest calls aten operators."""

_OPS = {
    "int8_linear": "linear",
    "routed_experts": "expert_mlp",
    "routed_int8_experts": "expert_mlp",
}
"""The op of the op layer that an operator belongs to, where they differ."""

_RECORDED_OPS = (
    *("linear", "expert_mlp", "write_rows", "window_attention", "reduce_sum", "gather_argmax"),
    *("sinkhorn", "sample_token", "topk_entries"),
)
"""Ops that every manifest records, whether or not the target has fused ops for them."""


@dataclass(frozen=True)
class FusedOp:
    """`name` is what a manifest records for `operator`, the short name of one of our operators.

    `build` takes the operator's arguments, fake tensors among them, and makes the results. So does `guard`,
    which says what the fused op needs and does not find in this call, None if nothing; a fused op without a
    guard takes every call. `custom_ops` are operators that a user has to name, by which the fused op is
    offered. `reads_blocks`: it reads compressed entries in blocks, which `SessionShape.entry_rows_multiples`
    makes whole.
    """

    name: str
    operator: str
    guard: Callable[..., str | None] | None
    build: Callable[..., Any]
    custom_ops: tuple[str, ...] = ()
    reads_blocks: bool = False

    @property
    def op(self) -> str:
        """The op of the op layer."""
        return _OPS.get(self.operator, self.operator)

    def fault(self, *arguments: Any) -> str | None:
        """What keeps the fused op from this call."""
        return None if self.guard is None else self.guard(*arguments)


def first_fault(*checks: tuple[bool, str]) -> str | None:
    """The text of the first check that does not hold."""
    return next((text for holds, text in checks if not holds), None)


class FusedOpChoice:
    """Chooses for one graph while it is decomposed, and remembers what it chose.

    Args:
        offered: of those of one operator the first is taken whose guard holds.
    """

    def __init__(self, offered: Iterable[FusedOp]) -> None:
        self._offered: dict[str, list[FusedOp]] = defaultdict(list)
        for fused in offered:
            self._offered[fused.operator].append(fused)
        self.taken: dict[str, Counter[str]] = defaultdict(Counter)
        """Calls by operator and fused op, or `PLAIN`; only operators that a fused op is offered for."""
        self.faults: dict[str, set[str]] = defaultdict(set)
        """What kept fused ops from being taken, by operator."""

    def functions(self) -> Functions:
        """For `functionalize`."""
        return {
            operator: partial(self._call, short_name(operator), function)
            for operator, function in OPERATORS.items()
            if short_name(operator) in self._offered
        }

    def recorded(self) -> dict[str, str]:
        """A manifest's text for each op: its fused op, or its fused ops by falling number of calls."""
        calls: dict[str, Counter[str]] = defaultdict(Counter)
        for operator, counts in self.taken.items():
            calls[_OPS.get(operator, operator)] += counts
        return {op: ", ".join(name for name, _ in counts.most_common()) for op, counts in calls.items()}

    def _call(self, operator: str, plain: Callable[..., Any], *arguments: Any) -> Any:
        for fused in self._offered[operator]:
            fault = fused.fault(*arguments)
            if fault is None:
                self.taken[operator][fused.name] += 1
                return fused.build(*arguments)
            self.faults[operator].add(f"{fused.name} takes {fault}")
        self.taken[operator][PLAIN] += 1
        return plain(*arguments)


def known_ops(fused_ops: Iterable[FusedOp], fixed: Mapping[str, str]) -> dict[str, str]:
    """A manifest's `ops` as far as they do not depend on the graphs.

    Those are ops that are plain in every graph, in `fixed`, or have a fused op without a guard.
    """
    always = {fused.op: fused.name for fused in fused_ops if fused.guard is None}
    known = dict.fromkeys(_RECORDED_OPS, PLAIN) | dict(fixed) | always
    return {op: name for op, name in known.items() if op not in chosen_ops(fused_ops)}


def chosen_ops(fused_ops: Iterable[FusedOp]) -> list[str]:
    """Ops that each call may have another fused op for."""
    return list(dict.fromkeys(fused.op for fused in fused_ops if fused.guard is not None))
