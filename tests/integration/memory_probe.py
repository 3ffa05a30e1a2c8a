"""Loads every graph of an artifact in a process of its own and reports what the kernel says of its memory.

`python memory_probe.py ARTIFACT` prints kilobytes as JSON. It imports no torch: libtorch is loaded, as in any
host, by libnextn.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

from nextn.runtime.bindings.library import find_torch_library
from nextn.runtime.bindings.model import Model


def kilobytes(field: str, mapping: str = "") -> int:
    """Sum of one field of smaps over the mappings whose line holds `mapping`."""
    total, counted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first and not first.endswith(":"):
            counted = mapping in line
        elif counted and first == f"{field}:":
            total += int(line.split()[1])
    return total


def main() -> None:
    artifact = Path(sys.argv[1])
    # libtorch's own start-up makes 58 MB of operator tables, with or without us.
    ctypes.CDLL(str(find_torch_library()), ctypes.RTLD_GLOBAL)
    before = kilobytes("Anonymous")
    with Model(artifact) as model:
        modes = ({}, {"phases": True}, {"speculation": False})
        sessions = [model.session(**mode) for mode in modes]
        for session in sessions:
            for slots in (1, model.info.slots):
                for request in range(slots):
                    session.submit(range(1, 40 + request), max_new_tokens=12, ignore_eos=True)
                session.run()
        weights = model.manifest.weights.file
        report = {
            "anonymous": kilobytes("Anonymous") - before,
            "state": len(modes) * model.info.state_bytes // 1024,
            "weights_bytes": model.info.weight_bytes // 1024,
            "weights_resident": kilobytes("Rss", weights),
            "weights_anonymous": kilobytes("Anonymous", weights),
            "weights_mappings": sum(
                weights in line for line in Path("/proc/self/maps").read_text().splitlines()
            ),
        }
        for session in sessions:
            session.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
