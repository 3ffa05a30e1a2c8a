"""Ten thousand mutated checkpoints: each is a named error or a sound checkpoint, soon and in little memory.

Mutations are drawn from a seeded generator, so that a failure names the number that repeats it.
"""

import json
import math
import os
import random
import resource
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from nextn.runtime.contract.errors import NextnError
from nextn.weights import Checkpoint, load_weights, packed_weights
from tests.oracles import published_layouts as layouts
from tests.oracles.synthetic import CASES, random_weights

MUTATIONS = 10_000
MEMORY_LIMIT_BYTES = 1 << 30
SECONDS_LIMIT = 5.0
"""For one mutation; the slowest takes a hundredth of that on an idle core."""

CASE = CASES["window_only"]

WRONG_NUMBERS = [-1, 0, 1, 2, 3, 127, 128, 129, 2**16, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, 10**30]
WRONG_VALUES = [None, True, "", "4", "mtp.0", [], {}, [[]], 0.5, math.inf, math.nan, *WRONG_NUMBERS]
DTYPES = ["F32", "BF16", "F16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "I32", "I64", "BOOL", "F4", "X"]


def write_sources(root: Path) -> list[Path]:
    """A plain, a release-like and a ModelSlim folder of the smallest case, each in shards with an index."""
    weights = random_weights(CASE.config, seed=1)
    plain = layouts.write_sharded(root / "plain", CASE.config, weights)
    release = layouts.write_sharded(root / "release", CASE.config, layouts.release(weights)[0])
    tensors, _, description = layouts.modelslim(weights)
    modelslim = layouts.write_modelslim(root / "modelslim", CASE.config, tensors, description)
    return [plain, release, modelslim]


class Mutator:
    """Applies one random change to one file of a folder; `restore` undoes it."""

    def __init__(self, folder: Path) -> None:
        self._files = {path: path.read_bytes() for path in sorted(folder.iterdir())}
        self._changed: Path | None = None

    def apply(self, draw: random.Random) -> str:
        path = draw.choice(list(self._files))
        self._changed = path
        content = self._files[path]
        is_shard = path.suffix == ".safetensors"
        kinds = [self._bytes, self._truncate, self._json] + [self._remove] * (draw.random() < 0.1)
        kind = draw.choice(kinds)
        kind(path, content, is_shard, draw)
        return f"{kind.__name__} of {path.name}"

    def restore(self) -> None:
        if self._changed is not None:
            self._changed.unlink(missing_ok=True)
            self._changed.write_bytes(self._files[self._changed])

    def _bytes(self, path: Path, content: bytes, is_shard: bool, draw: random.Random) -> None:
        end = 8 + int.from_bytes(content[:8], "little") if is_shard else len(content)
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            damaged[draw.randrange(end)] = draw.choice([0, 9, 34, 44, 48, 57, 91, 93, 123, 125, 255])
        path.write_bytes(damaged)

    def _truncate(self, path: Path, content: bytes, is_shard: bool, draw: random.Random) -> None:
        with open(path, "r+b") as file:
            # A sparse tail costs nothing.
            file.truncate(draw.choice([0, 1, 7, 8, 100, len(content) - 1, len(content) + 1, 2**33]))

    def _remove(self, path: Path, content: bytes, is_shard: bool, draw: random.Random) -> None:
        path.unlink()
        if draw.random() < 0.5:
            path.symlink_to(draw.choice(["/dev/zero", "/dev/null", "..", path.name, "/etc/passwd"]))

    def _json(self, path: Path, content: bytes, is_shard: bool, draw: random.Random) -> None:
        if is_shard:
            length = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + length])
            self._change_header(header, draw)
            text = json.dumps(header).encode()
            size = draw.choice([len(text)] * 9 + [2**62])
            path.write_bytes(struct.pack("<Q", size) + text + content[8 + length :])
        else:
            value = json.loads(content)
            self._change_object(value, draw)
            path.write_text(json.dumps(value))

    def _change_header(self, header: dict, draw: random.Random) -> None:
        name = draw.choice(list(header))
        entry = header[name]
        match draw.randrange(6):
            case 0:
                entry["dtype"] = draw.choice([*DTYPES, *WRONG_VALUES])
            case 1:
                entry["shape"] = draw.choice(
                    [[draw.choice(WRONG_NUMBERS)] * draw.randint(0, 5), *WRONG_VALUES]
                )
            case 2:
                bounds = [draw.choice(WRONG_NUMBERS), draw.choice(WRONG_NUMBERS)]
                entry["data_offsets"] = draw.choice([bounds, *WRONG_VALUES])
            case 3:
                header[draw.choice(["x", "mtp.1.a.weight", "layers.99.attn.wq_a.weight", name + "_"])] = (
                    header.pop(name)
                )
            case 4:
                other = draw.choice(list(header))
                header[name], header[other] = header[other], header[name]
            case 5:
                del header[name]

    def _change_object(self, value: dict, draw: random.Random) -> None:
        target = value
        while True:
            key = draw.choice(list(target))
            if not isinstance(target[key], dict) or not target[key] or draw.random() < 0.2:
                break
            target = target[key]
        match draw.randrange(3):
            case 0:
                target[key] = draw.choice(WRONG_VALUES)
            case 1:
                del target[key]
            case 2:
                target[str(key) + draw.choice(["_", ".weight", "\n"])] = target.pop(key)


def run_fuzz(root: Path, count: int, seed: int) -> dict[str, int]:
    """How many mutations were loaded and refused; raises on anything else."""
    torch.set_num_threads(1)
    mutators = [(folder, Mutator(folder)) for folder in write_sources(root)]
    outcome = {"loaded": 0, "refused": 0}
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")
        folder, mutator = draw.choice(mutators)
        started = time.process_time()
        what = mutator.apply(draw)
        try:
            checkpoint = Checkpoint.open(folder)
            packed = packed_weights(checkpoint.config, checkpoint.has_nextn)
            weights = load_weights(checkpoint, packed, torch.bfloat16)
            assert all(weight.shape == tuple(weights[weight.name].shape) for weight in packed)
            outcome["loaded"] += 1
        except NextnError as error:
            assert "\n" not in str(error) and error.file is not None, (number, what)
            outcome["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"mutation {number}: {what}") from error
        finally:
            mutator.restore()
        seconds = time.process_time() - started
        assert seconds < SECONDS_LIMIT, (number, what, seconds)
    return outcome


@pytest.mark.parametrize(
    "count",
    [pytest.param(600, id="some"), pytest.param(MUTATIONS, id="all", marks=pytest.mark.full)],
)
def test_mutations(tmp_path: Path, count: int) -> None:
    """In a process of its own, whose memory may grow by the limit and no more."""
    command = [sys.executable, "-m", "tests.hostile.checkpoints.test_fuzz", str(tmp_path), str(count)]
    finished = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[3], env=dict(os.environ)
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    outcome = json.loads(finished.stdout)
    assert outcome["loaded"] + outcome["refused"] == count
    # Both happen often: changes of nothing that matters load, others do not.
    assert min(outcome["loaded"], outcome["refused"]) > count // 50


def main(root: str, count: str) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + MEMORY_LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(json.dumps(run_fuzz(Path(root), int(count), seed=20)))


if __name__ == "__main__":
    main(*sys.argv[1:])
