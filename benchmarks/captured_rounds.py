"""Times the rounds of captured graphs: `captured_rounds.py ARTIFACT [--device D]`, an artifact of pt2 graphs.

Prints JSON: per graph how long a launch keeps the host, and how long until it had run; per round its graphs,
the host's share between them, and launches. Medians, in microseconds, after a round that is not counted.
Faults are one line and an exit code, as of `nextn-run`.
"""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median

from nextn.runtime.bindings.model import Model
from nextn.runtime.contract.errors import ExitCode
from nextn.runtime.selftest.times import SelftestTimes
from nextn.runtime.tool.run_tool import run_tool

PROMPT = tuple(range(2, 34))


def measure(model: Model, new_tokens: int, *, phases: bool) -> dict[str, object]:
    """One request alone, with `round` or with its phases."""
    times = SelftestTimes()
    with model.session(slots=1, phases=phases, executor=times.executor(model)) as session:
        session.submit(PROMPT, max_new_tokens=new_tokens, ignore_eos=True)
        while session.metrics().num_rounds == 0:
            session.turn()
        before = session.metrics()
        session.run()
        after = session.metrics()
        rounds = session.round_times()[1:]
    num_rounds = after.num_rounds - before.num_rounds
    return {
        "graphs": times.to_dict()["graphs"],
        "rounds": num_rounds,
        "launches_per_round": (after.num_graph_launches - before.num_graph_launches) / num_rounds,
        "graph_us": median(entry.graph_us for entry in rounds),
        "host_gap_us": median(entry.host_us for entry in rounds),
    }


def main(command_line: list[str]) -> int:
    """Raises NextnError."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact")
    parser.add_argument("--device", help="the artifact's own by default")
    parser.add_argument("--new-tokens", type=int, default=120)
    arguments = parser.parse_args(command_line)
    with Model(arguments.artifact, device=arguments.device) as model:
        kinds = {"round": False} | ({"phases": True} if model.has_phases else {})
        found = {kind: measure(model, arguments.new_tokens, phases=phases) for kind, phases in kinds.items()}
        print(json.dumps({"device": model.device, "dtype": model.manifest.target.dtype, **found}, indent=1))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(run_tool("captured_rounds.py", main, None))
