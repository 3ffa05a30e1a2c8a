"""CPUs and memory under the limits of control groups, version 2 and 1."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nextn.compile.build.machine import Machine

GIB = 1 << 30
HOST = 64 * GIB


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def system(root: Path, group: str, **files: str) -> Path:
    """A tree of `/proc` and `/sys`; `__` in a name stands for a slash."""
    table = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {HOST // 1024} kB\n", "proc/self/cgroup": group}
    table |= {f"sys/fs/cgroup/{name.replace('__', '/')}": text for name, text in files.items()}
    for name, text in table.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_limits(tmp_path: Path, many_cpus: None) -> None:
    assert Machine.measure(system(tmp_path, "0::/\n")) == Machine(16, HOST)
    files = {"a__memory.max": "max\n", "a__memory.current": "5\n", "a__cpu.max": "max 100000\n"}
    assert Machine.measure(system(tmp_path, "0::/a\n", **files)) == Machine(16, HOST)


def test_version_2(tmp_path: Path, many_cpus: None) -> None:
    """The tightest group on the way up counts; cache that can be dropped is free."""
    files = {
        "a__b__memory.max": str(9 * GIB),
        "a__b__memory.current": str(5 * GIB),
        "a__b__memory.stat": f"anon 7\ninactive_file {GIB}\n",
        "a__memory.max": str(8 * GIB),
        "a__memory.current": str(6 * GIB),
        "a__cpu.max": "350000 100000\n",
        "a__b__cpu.max": "max 100000\n",
    }
    assert Machine.measure(system(tmp_path, "0::/a/b\n", **files)) == Machine(3, 2 * GIB)
    (tmp_path / "sys/fs/cgroup/a/memory.max").unlink()
    assert Machine.measure(tmp_path).memory == 5 * GIB


def test_version_1(tmp_path: Path, many_cpus: None) -> None:
    group = "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/y\n"
    files = {
        "memory__docker__x__memory.limit_in_bytes": str(4 * GIB),
        "memory__docker__x__memory.usage_in_bytes": str(GIB),
        "memory__memory.limit_in_bytes": "9223372036854771712\n",
        "memory__memory.usage_in_bytes": str(GIB),
        "cpu__docker__x__cpu.cfs_quota_us": "200000",
        "cpu__docker__x__cpu.cfs_period_us": "100000",
        "cpu__cpu.cfs_quota_us": "-1",
        "cpu__cpu.cfs_period_us": "100000",
    }
    assert Machine.measure(system(tmp_path, group, **files)) == Machine(2, 3 * GIB)


def test_a_container_that_hides_its_own_group(tmp_path: Path, many_cpus: None) -> None:
    """The path names the host's tree, while the mount shows the container's group as its root."""
    files = {"memory.max": str(2 * GIB), "memory.current": "0", "cpu.max": "50000 100000"}
    assert Machine.measure(system(tmp_path, "0::/host/only\n", **files)) == Machine(1, 2 * GIB)


def test_damaged_files_are_no_limits(tmp_path: Path, many_cpus: None) -> None:
    files = {"memory.max": "lots", "memory.current": "", "cpu.max": "x y z"}
    assert Machine.measure(system(tmp_path, "nonsense\n0::/\n", **files)) == Machine(16, HOST)


def test_this_machine() -> None:
    machine = Machine.measure()
    assert 1 <= machine.cpus <= len(os.sched_getaffinity(0)) and machine.memory > 0
