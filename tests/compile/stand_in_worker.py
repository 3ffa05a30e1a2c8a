"""Takes the compile worker's place: writes a small file per graph at once, or misbehaves on demand.

`NEXTN_STAND_IN` holds JSON: `{"sleep": seconds, "only": graph key, "end": how, "log": text}`, where `end` is
one of `crash`, `raise`, `fill`, `stuff`, `mute` and `fail`, which writes the text.

`stuff` takes what the disk has left and ends without a word, as a log on a full disk does.
"""

import hashlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from nextn.compile.build.worker import GraphJob, die_with_parent


def main() -> int:
    die_with_parent(int(sys.argv[2]))
    behaviour = json.loads(os.environ.get("NEXTN_STAND_IN", "{}"))
    job = GraphJob.from_json(Path(sys.argv[1]).read_text())
    chosen = behaviour.get("only", job.key) == job.key
    if chosen:
        time.sleep(behaviour.get("sleep", 0))
        print(f"about to compile {job.key}", flush=True)
        if behaviour.get("end") == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if behaviour.get("end") == "raise":
            raise ValueError("of the last line")
        if behaviour.get("end") == "fill":
            raise OSError(28, "No space left on device", str(job.output))
        if behaviour.get("end") == "stuff":
            with open(job.output, "wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(65536)):
                    pass
            return 1
        if behaviour.get("end") == "mute":
            return 0
        if behaviour.get("end") == "fail":
            print(behaviour["log"], file=sys.stderr)
            return 1
    content = f"library of {job.key}\n".encode()
    job.output.write_bytes(content)
    description = {
        "name": job.name,
        "batch": job.batch,
        "rows": 1,
        "tensors": [],
        "returns": None,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    job.description.write_text(json.dumps(description))
    return 0


if __name__ == "__main__":
    sys.exit(main())
