"""`coda-synth bench`: runs a matrix of tasks, authors and strategies under equal budgets; resumable."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_found import every_run
from coda_synth.agent.cli_session import Begun, JudgeOnDemand, check_authors, provider_of, session
from coda_synth.agent.cli_synth import head
from coda_synth.agent.cli_tasks import known_target, known_task

if TYPE_CHECKING:
    from coda_synth.agent.bench import Cell, Line
    from coda_synth.runs.store import RunWriter, Store


def bench(args: argparse.Namespace) -> Exit:
    """Prints one line for each author and strategy; a cell whose run has ended is not run again."""
    from coda_synth.agent.bench import lines
    from coda_synth.agent.cli_view import print_json
    from coda_synth.runs.store import Store

    settings = config.of(args)
    known_target(settings.target)
    cells = _cells(args)
    authors = {author: _with_author(settings, author) for author in args.authors}
    for chosen in authors.values():  # before anything is written
        check_authors(provider_of(chosen), chosen)
    store, known = Store(Path(settings.runs)), _runs(args)
    with JudgeOnDemand(settings) as judge:
        judge.require()
        for number, cell in enumerate(cells, 1):
            chosen = replace(authors[cell.author], strategy=cell.strategy)
            provider = provider_of(chosen)
            writer = _writer(store, known, args.name, cell, provider, chosen)
            if writer is None:
                continue
            known[str(cell)] = writer.run.id
            hushed = argparse.Namespace(**{**vars(args), "json": True})
            end = session(hushed, Begun(writer, provider, judge, chosen, fresh=not writer.attempts))
            _say(args, f"{number} of {len(cells)}: {cell}: {end['stop']}")
            if end["interrupted"]:
                return Exit.INTERRUPTED
    found = lines([(c, store.read(known[str(c)]).attempts) for c in cells], args.near, args.fast, args.baseline)
    if args.json:
        print_json({"name": args.name, "lines": found, "runs": known})
    else:
        _print(args, found)
        print(f"Record: {len(cells)} runs in {settings.runs}, one for each cell, which `coda-synth show RUN` shows")
    return Exit.OK


def _cells(args: argparse.Namespace) -> list[Cell]:
    from coda_synth.agent.bench import Cell

    if args.repeats < 1:
        raise Failure(f"--repeats {args.repeats}: it must be at least 1")
    tasks = [known_task(name) for name in args.tasks]
    unknown = [s for s in args.strategies if s not in config.STRATEGIES]
    if unknown:
        raise Failure(f"there is no strategy {unknown[0]!r}; there are {', '.join(config.STRATEGIES)}")
    rows = itertools.product(range(1, args.repeats + 1), tasks, args.authors, args.strategies)
    return [Cell(task, author, strategy, repeat) for repeat, task, author, strategy in rows]


def _with_author(settings: config.Config, author: str) -> config.Config:
    """planner, anthropic/MODEL, openai-compatible/MODEL (with --base-url), scripted=PATH."""
    name, _, path = author.partition("=")
    if path:
        return replace(settings, provider=name, replies=path)
    name, _, model = author.partition("/")
    return replace(settings, provider=name, model=model or settings.model)


def _runs(args: argparse.Namespace) -> dict[str, str]:
    """The runs of this benchmark by their cells; of two the later."""
    heads = [record.run for record in every_run(args)]
    return {run.settings["cell"]: run.id for run in heads if run.settings.get("bench") == args.name}


def _writer(
    store: Store, runs: dict[str, str], name: str, cell: Cell, provider: Any, settings: config.Config
) -> RunWriter | None:
    """A new run, one that was broken off, or None for one that has ended."""
    known = runs.get(str(cell))
    if known is None:
        return store.create(head(cell.task, provider, settings, bench=name, cell=str(cell)))
    from coda_synth.agent.budget import UNFINISHED

    end = store.read(known).end
    return store.open(known) if end is None or end.stop in UNFINISHED else None


def _say(args: argparse.Namespace, text: str) -> None:
    from coda_synth.agent.cli_view import console

    if not args.quiet and not args.json:
        console(stderr=True).print(text, markup=False, soft_wrap=True)


def _print(args: argparse.Namespace, found: tuple[Line, ...]) -> None:
    from coda_synth.agent.cli_view import console, table

    columns: tuple[str, ...] = (
        "author",
        "strategy",
        "runs",
        "pass@1",
        "passed",
        "attempts to pass",
        f"within {args.near:.0%} of bound",
    )
    columns += (f"{args.fast:g} of {args.baseline}", "$ a run", "tokens a run", "spared")
    rows = [
        (
            *(x.author, x.strategy, str(x.runs), str(x.pass_at_1), str(x.passed), str(x.to_pass), str(x.near)),
            *(str(x.fast), str(x.usd), str(x.tokens), str(x.saved)),
        )
        for x in found
    ]
    console().print(table(columns, rows, title="95 % intervals; times count where they were measured"))
