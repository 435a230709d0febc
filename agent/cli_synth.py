"""`coda-synth synth`: one run for each task, shown while it goes on and summed up at its end."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_tasks import known_target, known_task

from coda_synth import __version__

if TYPE_CHECKING:
    from coda_synth.agent.cli_view import Progress
    from coda_synth.agent.events import Event
    from coda_synth.agent.loop import Outcome
    from coda_synth.agent.provider import Provider
    from coda_synth.evaluator.judge import Judge
    from coda_synth.runs.store import RunWriter


def synth(args: argparse.Namespace) -> Exit:
    """OK if every task has a candidate that passed. What can fail early does so before anything is written."""
    settings = config.of(args)
    names = _names(args)
    known_target(settings.target)
    provider = _provider(settings)
    from coda_synth.agent.cli_view import console, print_json, progress
    from coda_synth.evaluator.judge import Judge
    from coda_synth.runs.store import Store

    store = Store(Path(settings.runs))
    writers = {name: store.create(_head(name, provider, settings)) for name in names[:1]}
    ends: list[dict[str, Any]] = []
    with Judge(device=settings.device, target=settings.target, seed=settings.seed) as judge:
        for name in names:
            writer = writers.get(name) or store.create(_head(name, provider, settings))
            with progress(args) as screen:
                outcome = _run(name, provider, judge, writer, settings, screen)
            ends.append(_end(args, writer, outcome, console()))
            if ends[-1]["interrupted"]:
                break
    if args.json:
        print_json(ends if len(names) > 1 else ends[0])
    if ends[-1]["interrupted"]:
        print(f"coda-synth: interrupted; what was judged until then is whole in {ends[-1]['folder']}", file=sys.stderr)
        return Exit.INTERRUPTED
    return Exit.OK if all(end["report"].best for end in ends) else Exit.NOT_PASSED


def _names(args: argparse.Namespace) -> tuple[str, ...]:
    from coda_synth.tasks.catalog import task_names

    if args.all and args.task:
        raise Failure("--all is every task; name tasks or say --all, not both")
    if not args.all and not args.task:
        raise Failure(f"name a task, or say --all; the tasks are {', '.join(task_names())}")
    return task_names() if args.all else tuple(dict.fromkeys(map(known_task, args.task)))


def _provider(settings: config.Config) -> Provider:
    """Raises Failure where an option is missing, and ProviderError where a key is."""
    from coda_synth.agent.provider import Options
    from coda_synth.agent.providers import make

    if settings.provider == "scripted" and not settings.replies:
        raise Failure("the provider scripted needs --replies PATH, the replies that it replays")
    if settings.provider == "openai-compatible" and not settings.base_url:
        raise Failure("the provider openai-compatible needs --base-url URL, as http://localhost:8000/v1")
    replies = Path(settings.replies) if settings.replies else None
    if replies and not replies.exists():
        raise Failure(f"there are no replies at {replies}")
    options = Options(model=settings.model or "", base_url=settings.base_url or "", replies=replies)
    return make(settings.provider, options)


def _head(task: str, provider: Provider, settings: config.Config) -> Any:
    from coda_synth.runs.record import Run
    from coda_synth.runs.store import new_run_id

    now = datetime.datetime.now(datetime.UTC)
    kept = {name: str(value) for name in config.NAMES if (value := getattr(settings, name)) is not None}
    return Run(
        new_run_id(task, now), task, provider.name, provider.model, kept, now.isoformat(timespec="seconds"), __version__
    )


def _run(
    name: str, provider: Provider, judge: Judge, writer: RunWriter, settings: config.Config, screen: Progress
) -> Outcome:
    """A run that cannot go on leaves its record whole, and the message says where."""
    from coda_synth.agent.loop import Settings, synthesize
    from coda_synth.agent.provider import ProviderError
    from coda_synth.evaluator.judge import JudgeError
    from coda_synth.runs.store import StoreError
    from coda_synth.tasks.catalog import task

    limits = Settings(attempts=settings.attempts, minutes=settings.minutes)
    screen.say(f"{name}: starting")
    try:
        return synthesize(task(name), provider, judge, writer, limits, lambda event: _show(event, name, screen))
    except (ProviderError, JudgeError, StoreError) as error:
        raise Failure(f"{error} (the record up to there: {writer.folder})", Exit.ENVIRONMENT) from error


def _show(event: Event, task: str, screen: Progress) -> None:
    from coda_synth.agent.cli_view import time_text
    from coda_synth.agent.events import StageReached, StepStarted
    from coda_synth.runs.report import attempt_row

    if isinstance(event, StepStarted):
        screen.say(f"{task}, step {event.step} of at most {event.attempts}: the author is writing")
    elif isinstance(event, StageReached):
        screen.say(f"{task}, step {event.step}, candidate {event.candidate}: {event.stage}")
    else:
        row = attempt_row(event.attempt)
        lead = ", the best so far" if event.leads else ""
        screen.keep(f"{task}, step {row.step}: {row.result}, {time_text(row.time_ms, row.measured)}{lead}")


def _end(args: argparse.Namespace, writer: RunWriter, outcome: Outcome, screen: Any) -> dict[str, Any]:
    """Shows how the run ended, and gives it as data."""
    from coda_synth.agent.cli_record import runs_option
    from coda_synth.agent.cli_run import print_run
    from coda_synth.agent.loop import Stop
    from coda_synth.runs.report import report

    found = report(writer.run, outcome.attempts)
    if not args.json:
        print_run(screen, found, writer.folder, runs_option(args), f"Ended:   {outcome.reason}")
    interrupted = outcome.stop is Stop.INTERRUPTED
    return {"report": found, "folder": str(writer.folder), "stop": outcome.reason, "interrupted": interrupted}
