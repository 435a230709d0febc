"""`coda-synth lint`: whether a task is worth solving, or lets a wrong result pass."""

from __future__ import annotations

import argparse
from typing import Any

from coda_synth.agent.cli_failure import Exit
from coda_synth.agent.cli_tasks import known_task


def lint(args: argparse.Namespace) -> Exit:
    """OK if nothing was found in any of the tasks, at any of their dtypes."""
    names = tuple(dict.fromkeys(map(known_task, args.task)))
    from coda_synth.agent.cli_view import print_json, progress
    from coda_synth.evaluator.judge import Judge
    from coda_synth.tasks.catalog import task

    reports: list[dict[str, Any]] = []
    with progress(args) as screen, Judge(device="cpu") as judge:
        for name in names:
            for dtype in task(name).dtypes:
                screen.say(f"{name}, {dtype}")
                reports.append({"task": name, "dtype": dtype, "findings": judge.lint(name, dtype)})
    if args.json:
        print_json(reports)
    else:
        for report in reports:
            found = report["findings"]
            print(f"{report['task']} ({report['dtype']}): {f'{len(found)} findings' if found else 'sound'}")
            for finding in found:
                print(f"  {finding.rule}: {finding.message}")
    return Exit.NOT_PASSED if any(report["findings"] for report in reports) else Exit.OK
