"""The targets of this build: a new one is a line here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nextn.compile.targets.air.target import AirTarget
from nextn.compile.targets.aoti.target import AotiTarget
from nextn.compile.targets.onnx.target import OnnxTarget
from nextn.compile.targets.pt2.target import Pt2Target
from nextn.compile.targets.target import Flag, Target

_TARGETS: tuple[type[Target], ...] = (
    AotiTarget,
    Pt2Target,
    AirTarget,
    OnnxTarget,
)

TARGETS: dict[str, type[Target]] = {target.name: target for target in _TARGETS}
"""By name; the first one for a device is its default."""


def device_targets() -> Iterator[tuple[str, type[Target]]]:
    """Every device with each of its targets, its default first."""
    devices = dict.fromkeys(device for target in TARGETS.values() for device in target.devices)
    for device in devices:
        yield from ((device, target) for target in TARGETS.values() if device in target.devices)


def default_targets() -> dict[str, type[Target]]:
    """The default target of each device."""
    found: dict[str, type[Target]] = {}
    for device, target in device_targets():
        found.setdefault(device, target)
    return found


def flags() -> list[Flag]:
    """The flags that targets declare, each once."""
    return list({flag.name: flag for target in TARGETS.values() for flag in target.flags}.values())


def own_entries() -> set[str]:
    """Names that some target's artifacts may have in their folder."""
    return {name for target in TARGETS.values() for name in target.own_entries}


def leftovers(artifact: Path) -> list[Path]:
    """Files of killed commands of any target in a published artifact."""
    return [path for target in TARGETS.values() for path in target.leftovers(artifact)]
