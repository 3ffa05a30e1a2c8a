"""Make the shipped checkpoint from scratch, one stage after another, and log each stage with its duration."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

LOGS = Path(__file__).with_name("logs")
FOLDER = LOGS.parent.parent  # stages run here, where `training` is importable


def stages(scratch: Path) -> list[tuple[str, list[str]]]:
    """(log name, module and arguments) in order; checkpoints with full precision go to `scratch`."""
    joint, final = str(scratch / "joint.pt"), str(scratch / "final.pt")
    return [
        ("data", ["data"]),
        ("train", ["train", joint, "--steps", "2400"]),
        ("distill", ["distill", joint, final]),
        ("export", ["export", final]),
        ("evaluate", ["evaluate"]),
        ("evaluate_fresh_prompts", ["evaluate", "--without-ablations", "--seed", "1"]),
        ("compare_hf", ["compare_hf"]),
        ("check_rollout", ["check_rollout"]),
    ]


def run(name: str, arguments: list[str]) -> None:
    """Raises CalledProcessError if the stage fails."""
    module, *rest = arguments
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begun = time.time()
    with (LOGS / f"{name}.log").open("w") as log:
        command = [sys.executable, "-u", "-m", f"training.{module}", *rest]
        subprocess.run(command, cwd=FOLDER, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    print(f"{name}: {time.time() - begun:.0f} seconds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scratch", type=Path, help="folder for the checkpoints of the stages")
    scratch = parser.parse_args().scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    for name, arguments in stages(scratch):
        run(name, arguments)


if __name__ == "__main__":
    main()
