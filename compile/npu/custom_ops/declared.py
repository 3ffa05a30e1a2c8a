"""`Declared`: an operator that torch does not know, until it is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Declared:
    """`schema` as torch writes it, without the name; `shapes` gives empty results for fake tensors."""

    library: str
    name: str
    schema: str
    shapes: Callable[..., Any]

    def declare(self) -> None:
        """Nothing if its package is installed and has declared it."""
        if not hasattr(getattr(torch.ops, self.library), self.name):
            torch.library.define(f"{self.library}::{self.name}", self.schema)
            torch.library.impl(f"{self.library}::{self.name}", "Meta", self.shapes)
