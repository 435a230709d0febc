"""`coda-synth show`, `leaderboard` and `export`: what the record holds, and what can be taken out of it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_found import every_run, one_run, runs_option, store_of

if TYPE_CHECKING:
    from coda_synth.evaluator.evaluation import Candidate, Evaluation
    from coda_synth.runs.record import Attempt
    from coda_synth.runs.store import Record


def show(args: argparse.Namespace) -> Exit:
    """Prints a run, or one of its attempts in full."""
    from coda_synth.agent.budget import Stop
    from coda_synth.agent.cli_run import print_run
    from coda_synth.agent.cli_view import console, print_json
    from coda_synth.runs.report import report

    record = one_run(args, args.run or "latest")
    if args.attempt is not None:
        return _show_attempt(args, record)
    found = report(record.run, record.attempts)
    folder = Path(config.of(args).runs) / record.run.id
    if args.json:
        data = {"report": found, "attempts": record.attempts, "folder": str(folder)}
        print_json({**data, "note": record.note, "ended": _ended(args, record)})
    else:
        remarks = [f"Note:    {record.note}" if record.note else "", f"Ended:   {_ended(args, record)}"]
        stop = record.end.stop if record.end else Stop.INTERRUPTED
        print_run(console(), found, folder, runs_option(args), "\n".join(filter(None, remarks)), stop)
    return Exit.OK


def _ended(args: argparse.Namespace, record: Record) -> str:
    """A run that no session has ended is at work now, or was killed. Where a reply belongs is said of this record,
    which may have been copied since."""
    from coda_synth.agent.budget import Stop
    from coda_synth.agent.exchange import NAMES, Awaited
    from coda_synth.runs.store import place_after, step_name

    store, run_id = store_of(args), record.run.id
    if record.end is None:
        worker = store.worked_on(run_id)
        return f"not yet: {worker} works on it" if worker else _killed(run_id, runs_option(args))
    if record.end.stop == Stop.WAITING:
        step = store.root / run_id / step_name(place_after(record.attempts))
        return f"{record.end.stop}: {Awaited(step / NAMES[0])}"
    return record.end.reason


def _killed(run_id: str, options: str) -> str:
    return f"its process was killed; `coda-synth resume {run_id}{options}` goes on with it"


def _show_attempt(args: argparse.Namespace, record: Record) -> Exit:
    from coda_synth.agent.cli_report import report
    from coda_synth.agent.cli_view import console, print_json
    from coda_synth.evaluator.serial import to_data

    attempt = next((a for a in record.attempts if a.step == args.attempt), None)
    if attempt is None:
        raise Failure(f"run {record.run.id} has no step {args.attempt}; it has {len(record.attempts)} attempts")
    asked = _texts(args, record, attempt)
    if args.json:
        print_json({**to_data(attempt), **asked})
        return Exit.OK
    screen = console()
    text = attempt.candidate.source if attempt.candidate else "" if "reply" in asked else attempt.reply
    screen.print(f"step {attempt.step}: {attempt.outcome}. {attempt.note}", markup=False)
    if text:
        screen.print(text, markup=False, soft_wrap=True)
    if attempt.evaluation:
        for part in report(attempt.evaluation, text, "candidate"):
            screen.print(part)
    for name, said in asked.items():  # last: a prompt is long
        screen.print(f"\n=== {name}\n{said}", markup=False, soft_wrap=True)
    return Exit.OK


def _texts(args: argparse.Namespace, record: Record, attempt: Attempt) -> dict[str, str]:
    """What was asked and answered, as far as the run's folder holds it."""
    from coda_synth.runs.store import place_after, step_name

    place = place_after(record.attempts[: record.attempts.index(attempt)])
    folder = Path(config.of(args).runs) / record.run.id / step_name(place)
    files = {"prompt": folder / "prompt.md", "reply": folder / "reply.md"}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()}


def leaderboard(args: argparse.Namespace) -> Exit:
    """Prints every task's ranking, measured and modelled apart."""
    from coda_synth.agent.cli_run import print_board
    from coda_synth.agent.cli_tasks import known_task
    from coda_synth.agent.cli_view import console, print_json
    from coda_synth.runs.leaderboard import board

    task, store = known_task(args.task) if args.task else None, store_of(args)
    named = args.runs is not None or store.root != Path(config.Config().runs)
    if named and not store.root.is_dir():  # the folder of the default is made by the first run
        raise Failure(f"there is no folder {store.root}, so there is no record; say with --runs where it lies")
    found = board(store, task)
    if args.json:
        print_json(found)
    else:
        print_board(console(), found, runs_option(args))
    return Exit.OK


def export(args: argparse.Namespace) -> Exit:
    """Writes the package; judges first where the candidate is a file, for only what passed is exported."""
    from coda_synth.agent.cli_view import console, print_json, progress
    from coda_synth.runs.export import ExportError, NotPassed, write

    out = Path(args.out)
    if out.exists():
        raise Failure(f"{out} exists already; an export never writes over anything, so name a new folder with --out")
    candidate, evaluation = _chosen(args)
    from coda_synth.tasks.catalog import task as find

    try:
        with progress(args) as screen:
            screen.say(f"writing {out}")
            package = write(find(candidate.task), candidate, evaluation, out)
    except ExportError as error:
        raise Failure(str(error), Exit.NOT_PASSED if isinstance(error, NotPassed) else Exit.ENVIRONMENT) from None
    if args.json:
        print_json({"folder": str(out), "package": package, "candidate": candidate.id, "task": candidate.task})
        return Exit.OK
    folder = str(out) if out.is_absolute() else f"./{out}"  # pip would look for a bare name in its index
    lines = [
        f"{candidate.task}, candidate {candidate.id}, is now the package {package} in {out}",
        "Next:",
        f"  pip install {shlex.quote(f'{folder}[test]')}",
        f"  python -m pytest {shlex.quote(folder)}",
    ]
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)
    return Exit.OK


def _chosen(args: argparse.Namespace) -> tuple[Candidate, Evaluation]:
    """From a file (judged now), from a run (its best), or the best of a task in all runs."""
    if args.source and (args.source.endswith(".coda") or Path(args.source).is_file()):
        if not args.task:
            raise Failure("a candidate file says no task; add --task T")
        from coda_synth.agent.cli_evaluate import judged

        return judged(args, args.source)
    if args.source:
        record = one_run(args, args.source)
        if args.task and args.task != record.run.task:
            raise Failure(f"run {record.run.id} is of the task {record.run.task}, not {args.task}")
        return _best(record.attempts, f"in run {record.run.id}")
    if not args.task:
        raise Failure(
            "say what to export: a run, a candidate file with --task T, or --task T for the best in the record"
        )
    return _best(_all_attempts(args), f"of {args.task} in the record")


def _best(attempts: tuple[Attempt, ...], where: str) -> tuple[Candidate, Evaluation]:
    from coda_synth.runs.ranking import best

    found = best(attempts)
    if found is None or found.candidate is None or found.evaluation is None:
        last = next((a.evaluation for a in reversed(attempts) if a.evaluation), None)
        why = f"; the last verdict was {last.verdict}: {last.diagnostics[0]}" if last and last.diagnostics else ""
        raise Failure(f"no candidate {where} passed, and only one that passed is exported{why}", Exit.NOT_PASSED)
    return found.candidate, found.evaluation


def _all_attempts(args: argparse.Namespace) -> tuple[Attempt, ...]:
    from coda_synth.agent.cli_tasks import known_task

    task = known_task(args.task)
    return tuple(attempt for record in every_run(args) if record.run.task == task for attempt in record.attempts)
