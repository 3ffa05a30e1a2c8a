"""`ChosenForms`: which form each of our operators takes in a graph, and why not another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nextn.compile.build.functional import Forms
from nextn.compile.targets.ascend.fused_ops import (
    apply_rope,
    clamped_swiglu,
    compress,
    experts,
    hyper_connection,
    indexer_topk,
    int8_linear,
    rms_norm,
    route,
    window_attention,
)
from nextn.compile.targets.ascend.fused_ops.fused_op import Form
from nextn.graphs.ops.operator import OPERATORS, short_name

FORMS: tuple[Form, ...] = (
    *rms_norm.FORMS,
    *apply_rope.FORMS,
    *route.FORMS,
    *clamped_swiglu.FORMS,
    *experts.FORMS,
    *int8_linear.FORMS,
    *hyper_connection.FORMS,
    *window_attention.FORMS,
    *compress.FORMS,
    *indexer_topk.FORMS,
)
"""Of those of one operator the first is taken whose packages are there and whose guard holds."""

CUSTOM_OPS = tuple(sorted({name for form in FORMS for name in form.custom_ops}))
"""Operators that a form uses if a user names them, by GE type."""

BLOCK_READERS = frozenset(name for form in FORMS if form.reads_blocks for name in form.custom_ops)
"""Those among them that want entries per slot of `ENTRY_ROWS_MULTIPLES`."""

PLAIN = "plain"

_OPS = {
    "int8_linear": "linear",
    "routed_experts": "expert_mlp",
    "routed_int8_experts": "expert_mlp",
}
"""The op of the op layer that an operator belongs to, where they differ."""


class ChosenForms:
    """Chooses for one graph while it is decomposed, and remembers what it chose.

    Args:
        custom_ops: those of `CUSTOM_OPS` that are there.
    """

    def __init__(self, custom_ops: Sequence[str] = ()) -> None:
        self._offered: dict[str, list[Form]] = defaultdict(list)
        for form in FORMS:
            if set(form.custom_ops) <= set(custom_ops):
                self._offered[form.operator].append(form)
        self.taken: dict[str, Counter[str]] = defaultdict(Counter)
        """Calls by operator and form; only operators that a form is offered for."""
        self.faults: dict[str, set[str]] = defaultdict(set)
        """What kept forms from being taken, by operator."""

    def forms(self) -> Forms:
        """For `functionalize`."""
        return {
            operator: partial(self._call, short_name(operator), function)
            for operator, function in OPERATORS.items()
            if short_name(operator) in self._offered
        }

    def _call(self, operator: str, plain: Callable[..., Any], *arguments: Any) -> Any:
        for form in self._offered[operator]:
            fault = form.why_not(*arguments)
            if fault is None:
                self.taken[operator][form.name] += 1
                return form.build(*arguments)
            self.faults[operator].add(f"{form.name} takes {fault}")
        self.taken[operator][PLAIN] += 1
        return plain(*arguments)


def recorded(taken: Mapping[str, Counter[str]]) -> dict[str, str]:
    """A manifest's text for each op: its form, or its forms by falling number of calls."""
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    for operator, counts in taken.items():
        calls[_OPS.get(operator, operator)] += counts
    return {op: ", ".join(name for name, _ in counts.most_common()) for op, counts in calls.items()}


def uncalled(custom_ops: Sequence[str], ops: Mapping[str, str]) -> list[str]:
    """Those of `custom_ops` that no form which a manifest's `ops` lists would call."""
    taken = {name for forms in ops.values() for name in forms.split(", ")}
    called = {operator for form in FORMS if form.name in taken for operator in form.custom_ops}
    return [name for name in custom_ops if name not in called]
