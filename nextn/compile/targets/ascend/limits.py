"""How many graphs one process can capture, by chip; what was reported by those who ran into it.

A captured graph keeps a stream of the device as long as it lives, and a device has 2048: vllm-ascend counted
1920 graphs and left 128 streams to the rest (vllm-project/vllm-ascend#1168; error 207008, "stream resources
are insufficient", in #9691). Newer drivers may hold more (#9962), and a partitioned device less (#8585).
Drivers of the Ascend 950 fail beyond four sizes of what is captured (#10567, #12998); a size is the number
of rows that a graph computes. Those who found it captured decoding alone: here a prompt chunk and its seed,
of one size each, come on top.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nextn.runtime.contract.errors import UsageError

DEVICE_STREAMS = 2048
MAX_GRAPHS = 1920


@dataclass(frozen=True)
class CaptureLimits:
    """Of one process on one device; `capture_sizes` None means as many as there are graphs for."""

    chip: str
    graphs: int
    streams: int
    capture_sizes: int | None


_BY_PREFIX = {
    "Ascend910B": CaptureLimits("910B", MAX_GRAPHS, DEVICE_STREAMS, None),
    "Ascend910_93": CaptureLimits("910C", MAX_GRAPHS, DEVICE_STREAMS, None),
    "Ascend950": CaptureLimits("950", MAX_GRAPHS, DEVICE_STREAMS, 4),
}
"""By how `npu-smi info` and CANN begin a chip's name."""


def capture_limits(soc: str) -> CaptureLimits:
    """The limits of a chip by its name, for example Ascend910B1. Raises UsageError for an unknown one."""
    for prefix, limits in _BY_PREFIX.items():
        if re.fullmatch(prefix + r"[A-Za-z0-9_\-]*", soc):
            return limits
    expected = ", ".join(f"{prefix}..." for prefix in _BY_PREFIX)
    raise UsageError("--soc names a chip that is not known", expected=expected, found=soc)
