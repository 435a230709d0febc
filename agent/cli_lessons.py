"""`coda-synth lessons`: shows what earlier runs measured to help or to hurt, and forgets what is not worth telling."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_found import note, runs_option

if TYPE_CHECKING:
    from coda_synth.agent.lessons import Lesson


def lessons(args: argparse.Namespace) -> Exit:
    """Prints the lessons, the largest effects first, after forgetting those that were named or, of one task or all, are
    not among the largest."""
    from coda_synth.agent.cli_tasks import known_task
    from coda_synth.agent.cli_view import console, print_json, table
    from coda_synth.agent.lessons import LessonsError, damaged

    task, root = known_task(args.task) if args.task else None, Path(config.of(args).runs)
    try:
        shown = _pruned(args, task, root)
        note(damaged(root))
    except LessonsError as error:
        raise Failure(str(error), Exit.ENVIRONMENT) from None
    if args.json:
        print_json([{"id": x.id, "gain": x.gain, "lesson": x} for x in shown])
    elif not shown:
        console().print("No lessons yet: a run on a machine with a GPU that measures a change makes them.")
    else:
        rows = [
            (x.id, f"{x.gain:.2f}x", x.change, x.task, f"{x.device}, {x.shape}", f"{x.run}/{x.step}") for x in shown
        ]
        console().print(table(("id", "gain", "change", "task", "where", "run/step"), rows, right=("gain",)))
    return Exit.OK


def _pruned(args: argparse.Namespace, task: str | None, root: Path) -> list[Lesson]:
    """Those that stay, of the task or of all; raises Failure and LessonsError."""
    from coda_synth.agent.lessons import load, save
    from coda_synth.runs import files

    if args.keep is not None and args.keep < 0:
        raise Failure(f"--keep {args.keep}: it must be 0 or more")
    with files.alone(root) if root.is_dir() else nullcontext():
        known = load(root)
        unknown = sorted(set(args.drop or ()) - {lesson.id for lesson in known})
        if unknown:
            listed = f"`coda-synth lessons{runs_option(args)}` lists their ids"
            raise Failure(f"there is no lesson {unknown[0]!r}; {listed}")
        asked = [x for x in known if task in (None, x.task) and x.id not in (args.drop or ())]
        order = sorted(asked, key=lambda x: -abs(x.before - x.after) / x.before)[: args.keep]
        forgotten = {x.id for x in asked if x not in order} | set(args.drop or ())
        if forgotten:
            save(root, [x for x in known if x.id not in forgotten])
    return order
