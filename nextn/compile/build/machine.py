"""`Machine`: the CPUs and the memory this process may use, containers' limits included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# cgroup v1 writes "no limit" as a number of about this size.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Machine:
    """`cpus` is at least 1; `memory` is in bytes, what can be had without swapping."""

    cpus: int
    memory: int

    @classmethod
    def measure(cls, root: Path = Path("/")) -> Machine:
        """Reads affinity, `/proc/meminfo` and the control groups, below `root`.

        A process in a container sees the whole host in `/proc/meminfo` and is killed at the limit of its
        control groups: the tightest one on the way to the root counts.
        """
        cpus = [len(os.sched_getaffinity(0)), *_cpu_limits(root)]
        memory = [_free_memory(root), *_memory_limits(root)]
        return cls(max(1, min(cpus)), max(0, min(memory)))


def _free_memory(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _memory_limits(root: Path) -> Iterator[int]:
    """Bytes left in each control group; cache that would be dropped first counts as free."""
    for folder in _groups(root, "memory"):
        for limit_file, usage_file, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _number(folder / limit_file), _number(folder / usage_file)
            if limit is not None and usage is not None and limit < _NO_LIMIT:
                statistics = dict(
                    line.split()
                    for line in _text(folder / "memory.stat").splitlines()
                    if line.count(" ") == 1
                )
                yield limit - usage + int(statistics.get(cache, 0))


def _cpu_limits(root: Path) -> Iterator[int]:
    for folder in _groups(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.strip().isdigit() and int(period) > 0:
            yield int(quota) // int(period)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups of this process, version 2 and 1, from its own up to the root's."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        # Version 1 has a tree for each controller, version 2 one for all.
        top = mount / controller if controllers else mount
        place = PurePosixPath(path.lstrip("/"))
        for part in (place, *place.parents):
            yield top / part


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    """Empty if there is no such file: kernels and containers differ in which they show."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
