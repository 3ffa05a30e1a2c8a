"""A model and state whose tensors have a place and no content, for what looks at shapes alone."""

from __future__ import annotations

import mmap
from math import prod

import torch
from torch import Tensor

from nextn.graphs.model import Model
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import State

_MAP_NORESERVE = 0x4000
"""Linux's flag; Python names it from 3.13 on. Without it a mapping beyond its memory may be refused."""


def unwritten_model(shape: SessionShape) -> tuple[Model, State]:
    """Weights and state of zeros that take no memory until they are written.

    The lowering needs real tensors, which fake ones are not. `torch.zeros` writes its zeros, which would put
    a whole model into every worker's memory; a page of an anonymous mapping exists once it is touched.
    """
    with torch.device("meta"):
        model, state = Model(shape), State(shape)
    for root in (model, state):
        for name, buffer in list(root.named_buffers()):
            owner, _, leaf = name.rpartition(".")
            setattr(root.get_submodule(owner), leaf, _unwritten_zeros(buffer))
    return model, state


def _unwritten_zeros(like: Tensor) -> Tensor:
    count = prod(like.shape)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    pages = mmap.mmap(-1, count * like.dtype.itemsize, flags=flags)
    return torch.frombuffer(pages, dtype=like.dtype, count=count).view(like.shape)
