"""Which converter writes each aten operator as ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from nextn.compile.targets.onnx.emitter import Emitter

aten: Any = torch.ops.aten

Converter = Callable[[Emitter, fx.Node], None]
"""Adds the nodes that compute an fx node and binds it to what they give."""

CONVERTERS: dict[Any, Converter] = {}


def converts(*targets: Any) -> Callable[[Converter], Converter]:
    """Registers a converter of these operators."""

    def register(converter: Converter) -> Converter:
        for target in targets:
            assert target not in CONVERTERS, target
            CONVERTERS[target] = converter
        return converter

    return register
