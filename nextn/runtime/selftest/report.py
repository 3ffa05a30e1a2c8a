"""`SelftestReport`: what a self-test found and where it ran, for whoever asked for the test."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from nextn.runtime.bindings.model import Model
from nextn.runtime.contract.version import VERSION
from nextn.runtime.selftest.ascend import ascend_facts
from nextn.runtime.selftest.golden_runs import Check
from nextn.runtime.selftest.golden_state import BufferDifference


@dataclass(frozen=True)
class SelftestReport:
    """Checks in order, the machine, times in microseconds, and each state buffer at its worst."""

    passed: bool
    checks: tuple[Check, ...]
    environment: dict[str, str]
    times: dict[str, Any]
    state: tuple[BufferDifference, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; a difference that is not finite is null."""
        return {
            "passed": self.passed,
            "checks": [
                {"name": check.name, "passed": check.passed, "detail": check.detail} for check in self.checks
            ],
            "environment": self.environment,
            "times": self.times,
            "state": [
                {
                    name: None if isinstance(value, float) and not math.isfinite(value) else value
                    for name, value in asdict(buffer).items()
                }
                for buffer in self.state
            ],
        }

    def block(self) -> str:
        """The report as text to send back."""
        lines = [f"{name}: {value}" for name, value in self.environment.items()]
        lines.append(f"checks: {sum(check.passed for check in self.checks)} of {len(self.checks)} passed")
        lines += [f"FAIL {check.name}: {check.detail}" for check in self.checks if not check.passed]
        for graph, times in self.times["graphs"].items():
            lines.append(f"graph {graph}: " + _values(times))
        for kind, times in self.times["rounds"].items():
            lines.append(f"{kind}: " + _values(times))
        for buffer in self.state:
            row = "" if buffer.first_bad_row is None else f", first bad row {buffer.first_bad_row}"
            lines.append(
                f"state {buffer.buffer}: largest difference {buffer.largest:.3g}, "
                f"{buffer.share_of_allowed:.3g} of what is allowed{row}"
            )
        return "\n".join(["----- report to send back -----", *lines, "----- end of report -----"])


def selftest_report(model: Model, checks: Sequence[Check], times: dict[str, Any]) -> SelftestReport:
    """Reads what the machine says of itself."""
    return SelftestReport(
        passed=all(check.passed for check in checks),
        checks=tuple(checks),
        environment=_environment(model),
        times=times,
        state=_worst(buffer for check in checks for buffer in check.buffers),
    )


def _environment(model: Model) -> dict[str, str]:
    manifest = model.manifest
    producer, target = manifest.producer, manifest.target
    facts = {
        "nextn": VERSION,
        "artifact": f"by nextn {producer.nextn}, torch {producer.torch}, {producer.compiler}",
        "manifest": manifest.manifest_sha256,
        "target": f"{target.device} {target.emit} {target.dtype}" + (f" {target.soc}" if target.soc else ""),
        "device": model.device,
        "ops": ", ".join(f"{name} {form}" for name, form in sorted(manifest.ops.items())),
        "host": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _torch_version(),
    }
    return facts | (ascend_facts() if model.device == "npu" else {})


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "not installed"


def _worst(differences: Iterable[BufferDifference]) -> tuple[BufferDifference, ...]:
    """Of each buffer the comparison with the largest share of what is allowed."""
    worst: dict[str, BufferDifference] = {}
    for one in differences:
        known = worst.get(one.buffer)
        if known is None or one.share_of_allowed > known.share_of_allowed:
            worst[one.buffer] = one
    return tuple(worst.values())


def _values(times: dict[str, float | int | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in times.items())
