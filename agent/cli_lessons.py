"""`coda-synth lessons`: shows what earlier runs measured to help or to hurt, and forgets what is not worth telling."""

from __future__ import annotations

import argparse
from pathlib import Path

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_found import note


def lessons(args: argparse.Namespace) -> Exit:
    """Prints the lessons, the largest effects first, after forgetting those that were named."""
    from coda_synth.agent.cli_tasks import known_task
    from coda_synth.agent.cli_view import console, print_json, table
    from coda_synth.agent.lessons import LessonsError, damaged, load, save

    task, root = known_task(args.task) if args.task else None, Path(config.of(args).runs)
    try:
        known = load(root)
        unknown = sorted(set(args.drop or ()) - {lesson.id for lesson in known})
        if unknown:
            raise Failure(f"there is no lesson {unknown[0]!r}; `coda-synth lessons` lists their ids")
        kept = tuple(lesson for lesson in known if lesson.id not in (args.drop or ()))
        order = sorted(kept, key=lambda x: -abs(x.before - x.after) / x.before)
        if args.keep is not None:
            if args.keep < 0:
                raise Failure(f"--keep {args.keep}: it must be 0 or more")
            order = order[: args.keep]
            kept = tuple(lesson for lesson in kept if lesson in order)
        if kept != known:
            save(root, kept)
        note(damaged(root))
    except LessonsError as error:
        raise Failure(str(error), Exit.ENVIRONMENT) from None
    shown = [lesson for lesson in order if task in (None, lesson.task)]
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
