"""GE's fused operators: their operands and attributes, handed to what their descriptions say they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tests.oracles import ascend_attention, ascend_operators  # noqa: F401
from tests.oracles.described import DESCRIPTIONS, Description
from tests.oracles.ge_evaluator.attributes import attribute


class _Given(dict[str, Any]):
    """Fed operands by their names in the operator's definition; all else is an attribute."""

    def __init__(self, operator: Any, operands: tuple[Tensor | None, ...]) -> None:
        names = [name.decode() for name in operator.attr["_input_name_key"].list.s]
        # Optional inputs at the end that are not fed are not there.
        fed = zip(names, operands, strict=False)
        super().__init__((name, one) for name, one in fed if one is not None and one.numel())
        self._operator = operator

    def __missing__(self, name: str) -> Any:
        found = attribute(self._operator, name)
        if isinstance(found, bytes):
            return found.decode()
        return list(found.i) if hasattr(found, "i") else found

    def is_written(self, name: str) -> bool:
        """Whether the file has the attribute."""
        return name in self._operator.attr


def _rule(description: Description) -> Callable[..., tuple[Tensor, ...]]:
    def run(operator: Any, *operands: Tensor | None) -> tuple[Tensor, ...]:
        given = _Given(operator, operands)
        return description.call(description.ge, given, tuple(given))

    return run


FUSED_RULES = {description.ge.name: _rule(description) for description in DESCRIPTIONS}
"""By type, as `operators.RULES`."""
