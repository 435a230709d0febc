"""`coda-synth synth` and `resume`: one run for each task, shown while it goes on, and gone on with later."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_found import every_run, one_run, store_of
from coda_synth.agent.cli_session import Begun, check_authors, exit_of, provider_of
from coda_synth.agent.cli_several import Judges, all_ended, jobs_for, say_dollars
from coda_synth.agent.cli_tasks import known_target, known_task

from coda_synth import __version__

if TYPE_CHECKING:
    from coda_synth.agent.provider import Provider
    from coda_synth.runs.record import Run
    from coda_synth.runs.store import Record, Store


def synth(args: argparse.Namespace) -> Exit:
    """OK if every task has a candidate that passed. What can fail early does so before anything is written."""
    settings = config.of(args)
    names = _names(args)
    known_target(settings.target)
    provider = provider_of(settings)
    check_authors(provider, settings)
    from coda_synth.runs.store import Store

    store, every = Store(Path(settings.runs)), [settings] * len(names)
    say_dollars(args, every)
    with Judges() as judges:
        judge = judges.of(settings)

        def begin(name: str) -> Begun:
            return Begun(store.create(head(name, provider, settings)), provider, judge, settings, fresh=True)

        return _shown(args, *all_ended(args, names, begin, jobs_for(every, settings.jobs)), len(names) != 1)


def resume(args: argparse.Namespace) -> Exit:
    """Goes on with runs under the budgets that they began with, or those given now."""
    here, store = config.of(args), store_of(args)
    names = _resumed(args, store)
    if not names and not args.json:
        print("no run waits for a reply")
    every = [found for name in names if (found := _begun_with(args, store, name))]
    say_dollars(args, every)
    with Judges() as judges:

        def begin(name: str) -> Begun:
            kept = store.read(name).run
            settings = config.stored(kept.settings, args)
            known_task(kept.task)
            known_target(settings.target)
            provider = provider_of(settings)
            check_authors(provider, settings)
            judge = judges.of(settings)
            return Begun(store.open(name), provider, judge, settings)

        several = args.waiting or len(names) != 1
        return _shown(args, *all_ended(args, names, begin, jobs_for(every, here.jobs)), several)


def _shown(args: argparse.Namespace, ends: list[dict[str, Any]], interrupted: bool, several: bool) -> Exit:
    """The end of a command over runs, each of which has been shown: of several a summary, and the exit code."""
    from coda_synth.agent.cli_run import print_summary
    from coda_synth.agent.cli_view import console, print_json

    if args.json:
        print_json(ends if several else ends[0])
    elif len(ends) > 1:
        print_summary(console(), ends)
    return exit_of(ends, interrupted)


def _begun_with(args: argparse.Namespace, store: Store, name: str) -> config.Config | None:
    """None where that cannot be read, which is told when the run is to go on."""
    from coda_synth.runs.store import StoreError

    try:
        return config.stored(store.read(name).run.settings, args)
    except (StoreError, config.ConfigError):
        return None


def _resumed(args: argparse.Namespace, store: Store) -> tuple[str, ...]:
    if args.waiting and args.run:
        raise Failure("--waiting is every run that waits for a reply; name runs or say --waiting, not both")
    if args.waiting:
        return tuple(record.run.id for record in every_run(args) if _waits(store, record))
    if not args.run:
        return (one_run(args, "latest").run.id,)
    return tuple(dict.fromkeys(store.resolve(name) for name in args.run))


def _waits(store: Store, record: Record) -> bool:
    """For a reply: whether it stopped for that, or was interrupted or killed while it waited, or could not read the one
    that lies there."""
    from coda_synth.agent.budget import UNFINISHED, Stop

    if record.run.provider != "exchange":
        return record.end is not None and record.end.stop == Stop.WAITING
    return record.end.stop in UNFINISHED if record.end else not store.worked_on(record.run.id)


def _names(args: argparse.Namespace) -> tuple[str, ...]:
    from coda_synth.tasks.catalog import task_names

    if args.all and args.task:
        raise Failure("--all is every task; name tasks or say --all, not both")
    if not args.all and not args.task:
        raise Failure(f"name a task, or say --all; the tasks are {', '.join(task_names())}")
    return task_names() if args.all else tuple(dict.fromkeys(map(known_task, args.task)))


def head(task: str, provider: Provider, settings: config.Config, **more: str) -> Run:
    """A new run's head. more: further settings, as those of a benchmark."""
    from coda_synth.runs.record import Run
    from coda_synth.runs.store import new_run_id
    from coda_synth.runs.version import commit

    now = datetime.datetime.now(datetime.UTC)
    values = {name: getattr(settings, name) for name in config.NAMES if name != "jobs"}
    kept = {name: str(value) for name, value in values.items() if value is not None} | more
    started = now.isoformat(timespec="seconds")
    return Run(new_run_id(task, now), task, provider.name, provider.model, kept, started, __version__, commit())
