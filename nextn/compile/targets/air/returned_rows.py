"""What an `.air` or `.om` graph returns: a graph engine keeps nothing that leads to no output."""

from __future__ import annotations

from collections.abc import Collection

from nextn.runtime.contract.blocks import Control, Result
from nextn.runtime.contract.manifest import ReturnedBlock

_BLOCKS: dict[ReturnedBlock, type[Control] | type[Result]] = {"result": Result, "control": Control}

_WORD = 8


def returned_block(written: Collection[str]) -> ReturnedBlock:
    """The block whose rows a graph returns that writes these buffers: the results, if it leaves any."""
    return next(name for name in _BLOCKS if name in written)


def returned_bytes(batch: int, block: ReturnedBlock) -> int:
    """Size of the rows of `batch` slots."""
    return batch * _BLOCKS[block].WIDTH * _WORD
