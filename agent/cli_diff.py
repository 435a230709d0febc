"""`coda-synth diff`: what differs between two candidates of a run, in their texts and in what was measured."""

from __future__ import annotations

import argparse
import difflib
from typing import TYPE_CHECKING

from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_found import one_run

if TYPE_CHECKING:
    from coda_synth.runs.record import Attempt


def diff(args: argparse.Namespace) -> Exit:
    """Prints a unified diff of the programs, whether they are the same in form, and both results."""
    from coda_synth.agent.cli_view import console, print_json
    from coda_synth.agent.lessons import changed
    from coda_synth.agent.outline import line

    record = one_run(args, args.run)
    one, two = (_found(record.attempts, name, record.run.id) for name in (args.a, args.b))
    before, after = _source(one), _source(two)
    named = [f"step {a.step} {a.candidate.id}" for a in (one, two) if a.candidate]
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), named[0], named[1], lineterm=""))
    what = changed(before, after) or _unchanged(before, after)
    if args.json:
        print_json({"a": one, "b": two, "diff": lines, "change": what})
        return Exit.OK
    for said in (line(one), line(two), f"change: {what}", "", *lines):
        console().print(said, markup=False, soft_wrap=True)
    return Exit.OK


def _unchanged(before: str, after: str) -> str:
    """Why no change can be told."""
    from coda_synth.coda_api.errors import ProgramError
    from coda_synth.coda_api.reader import read

    try:
        read(before), read(after)
    except ProgramError:
        return "one of them is no program, so only the texts can be compared"
    return "nothing that changes what is computed or how it is scheduled"


def _source(attempt: Attempt) -> str:
    return attempt.candidate.source if attempt.candidate else ""


def _found(attempts: tuple[Attempt, ...], name: str, run: str) -> Attempt:
    """By step, by a candidate's id or its beginning, or "best"; raises Failure."""
    from coda_synth.runs.ranking import best

    having = [a for a in attempts if a.candidate]
    leader = best(attempts) if name == "best" else None
    by_step = [a for a in having if str(a.step) == name]
    by_id = [a for a in having if len(name) > 3 and a.candidate and a.candidate.id.startswith(name)]
    found = leader or next(iter(by_step or by_id), None)
    if found is None:
        steps = ", ".join(str(a.step) for a in having) or "none"
        raise Failure(f"run {run} has no candidate {name!r}; steps with a candidate: {steps}")
    return found
