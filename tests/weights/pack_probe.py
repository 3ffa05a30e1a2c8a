"""Packs a checkpoint in a process of its own and says how much memory that took."""

import json
import resource
import sys
import time
from pathlib import Path

import torch

from nextn.weights import Checkpoint, pack_weights, packed_weights


def main(folder: str, out: str) -> None:
    torch.set_num_threads(1)
    imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    checkpoint = Checkpoint.open(folder)
    started = time.monotonic(), time.process_time()
    entries = pack_weights(checkpoint, packed_weights(checkpoint.config, True), torch.bfloat16, Path(out))
    print(
        json.dumps(
            {
                "imported_bytes": imported,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "seconds": time.monotonic() - started[0],
                "cpu_seconds": time.process_time() - started[1],
                "packed_bytes": Path(out).stat().st_size,
                "entries": len(entries),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
