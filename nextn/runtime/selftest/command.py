"""`nextn-run --selftest`: replays the golden runs on the artifact's device and reports."""

from __future__ import annotations

import sys

from nextn.runtime.bindings.model import Model
from nextn.runtime.cli import json_output
from nextn.runtime.contract.errors import ExitCode
from nextn.runtime.selftest.ascend import require_acl
from nextn.runtime.selftest.golden_runs import Check, selftest
from nextn.runtime.selftest.report import selftest_report
from nextn.runtime.selftest.times import SelftestTimes


def run_selftest(model: Model, *, as_json: bool) -> ExitCode:
    """Prints each check as it is done, then the result; where no CPU was meant, a report to send back too.

    Raises what `selftest` raises, and ExecutionError for `.om` graphs where CANN is not: that is no finding
    about a device.
    """
    if model.manifest.target.emit == "om":
        require_acl()
    checks: list[Check] = []
    times = SelftestTimes()
    for check in selftest(model, times):
        checks.append(check)
        if not as_json:
            print(f"{'PASS' if check.passed else 'FAIL'}  {check.name}: {check.detail}", flush=True)
    report = selftest_report(model, checks, times.to_dict())
    if as_json:
        sys.stdout.write(json_output.line({"selftest": report.to_dict()}))
    else:
        if model.manifest.target.device != "cpu":
            print(report.block())
        failed = sum(not check.passed for check in checks)
        print(f"FAIL: {failed} of {len(checks)} checks" if failed else f"PASS: {len(checks)} checks")
    return ExitCode.OK if report.passed else ExitCode.ARTIFACT
