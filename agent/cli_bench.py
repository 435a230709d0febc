"""`coda-synth bench`: runs a matrix of tasks, authors and strategies under equal budgets, side by side; resumable."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_found import every_run, runs_option, store_of
from coda_synth.agent.cli_session import Begun, JudgeOnDemand, check_authors, exit_of, provider_of
from coda_synth.agent.cli_several import End, Judges, jobs_for, say_dollars, side_by_side
from coda_synth.agent.cli_synth import head
from coda_synth.agent.cli_tasks import known_target, known_task

if TYPE_CHECKING:
    from coda_synth.agent.bench import Cell, Line
    from coda_synth.runs.store import Record

Cells = Mapping[str, "Cell"]  # by what each is called


def bench(args: argparse.Namespace) -> Exit:
    """Prints one line for each author and strategy; a cell whose run has ended is not run again, any other is."""
    from coda_synth.agent.bench import lines
    from coda_synth.runs.survey import survey

    cells, settings = _cells(args), config.of(args)
    known_target(settings.target)
    of_cell = {name: replace(_with_author(settings, c.author), strategy=c.strategy) for name, c in cells.items()}
    before = {name: r for name, r in _cells_of(args.name, every_run(args)).items() if name in cells}
    _under_equal_budgets(args, before, settings)
    ends, interrupted = _worked_on(args, _left(cells, before), of_cell)
    after = _cells_of(args.name, survey(store_of(args))[0])
    records = {name: after[name] for name in cells if name in after}
    done = {name: record for name, record in records.items() if _ended(record)}
    found = lines([(cells[name], r.attempts) for name, r in done.items()], args.near, args.fast, args.baseline)
    unfinished = {name: _why(ends.get(name)) for name in cells if name not in done}
    if args.json:
        from coda_synth.agent.cli_view import print_json

        kept = {name: record.run.id for name, record in records.items()}
        print_json({"name": args.name, "lines": found, "runs": kept, "unfinished": unfinished})
    else:
        _print(args, found, len(done), unfinished)
    return _exit(ends, interrupted)


def _left(cells: Cells, before: Mapping[str, Record]) -> Cells:
    """Those whose run has not ended, or not begun."""
    return {name: cell for name, cell in cells.items() if name not in before or not _ended(before[name])}


def _under_equal_budgets(args: argparse.Namespace, before: Mapping[str, Record], settings: config.Config) -> None:
    """Raises Failure where a cell ran, or runs, under others: what it shows must not be counted with the rest."""
    for cell, record in before.items():
        if said := config.unlike(record.run.settings, settings):
            raise Failure(
                f"the cell {cell!r} of the benchmark {args.name!r} was begun with {', '.join(said)}; ask for the same"
                " again, or give another --name"
            )


def _worked_on(
    args: argparse.Namespace, left: Cells, of_cell: Mapping[str, config.Config]
) -> tuple[dict[str, End], bool]:
    """How the runs of these cells ended. What can fail early does so before anything is written; no other process is at
    this benchmark meanwhile, as a cell that both begin would be paid for twice."""
    from coda_synth.runs.survey import survey

    if not left:
        return {}, False
    for chosen in {left[name].author: of_cell[name] for name in left}.values():
        check_authors(provider_of(chosen), chosen)
    store, every = store_of(args), [of_cell[name] for name in left]
    say_dollars(args, every)
    with Judges() as judges:
        judge = judges.of(every[0])  # that of all cells: they differ in author and strategy alone
        with store.claimed(f"the benchmark {args.name!r}"):
            before = _cells_of(args.name, survey(store)[0])  # with what another process did until now
            return _run(args, _left(left, before), of_cell, before, judge)


def _run(
    args: argparse.Namespace,
    left: Cells,
    of_cell: Mapping[str, config.Config],
    before: Mapping[str, Record],
    judge: JudgeOnDemand,
) -> tuple[dict[str, End], bool]:
    if not left:
        return {}, False
    store, every = store_of(args), [of_cell[name] for name in left]

    def begin(name: str) -> Begun:
        """A new run, or one that was broken off."""
        chosen, provider = of_cell[name], provider_of(of_cell[name])
        if name in before:
            writer = store.open(before[name].run.id)
        else:
            writer = store.create(head(left[name].task, provider, chosen, bench=args.name, cell=name))
        return Begun(writer, provider, judge, chosen, fresh=not writer.attempts)

    return side_by_side(args, tuple(left), begin, jobs_for(every, every[0].jobs))


def _cells(args: argparse.Namespace) -> Cells:
    """What is named twice is one cell."""
    from coda_synth.agent.bench import Cell

    if args.repeats < 1:
        raise Failure(f"--repeats {args.repeats}: it must be at least 1")
    tasks = [known_task(name) for name in args.tasks]
    unknown = [s for s in args.strategies if s not in config.STRATEGIES]
    if unknown:
        raise Failure(f"there is no strategy {unknown[0]!r}; there are {', '.join(config.STRATEGIES)}")
    rows = itertools.product(range(1, args.repeats + 1), tasks, args.authors, args.strategies)
    cells = [Cell(task, author, strategy, repeat) for repeat, task, author, strategy in rows]
    return {str(cell): cell for cell in cells}


def _with_author(settings: config.Config, author: str) -> config.Config:
    """planner, anthropic/MODEL, openai-compatible/MODEL (with --base-url), scripted=PATH."""
    name, _, path = author.partition("=")
    if path:
        return replace(settings, provider=name, replies=path)
    name, _, model = author.partition("/")
    return replace(settings, provider=name, model=model or settings.model)


def _cells_of(name: str, records: Iterable[Record]) -> dict[str, Record]:
    """Of two runs of a cell the later."""
    return {r.run.settings["cell"]: r for r in records if r.run.settings.get("bench") == name}


def _ended(record: Record) -> bool:
    """Whether there is no more to do: it was neither killed nor broken off, and waits for nobody."""
    from coda_synth.agent.budget import UNFINISHED

    return record.end is not None and record.end.stop not in UNFINISHED


def _why(end: End | None) -> str:
    return "not begun" if end is None else str(end["stop"])


def _exit(ends: Mapping[str, End], interrupted: bool) -> Exit:
    """That no candidate of a run passed is what was to be found out, and no failure of the command."""
    broken = {name: end for name, end in ends.items() if "error" in end}
    for name, end in broken.items():
        print(f"coda-synth: {name}: {end['error']}", file=sys.stderr)
    code = exit_of(list(ends.values()), interrupted)
    return Exit.OK if code is Exit.NOT_PASSED and not broken else code


def _print(args: argparse.Namespace, found: tuple[Line, ...], done: int, unfinished: Mapping[str, str]) -> None:
    from coda_synth.agent.cli_live import say
    from coda_synth.agent.cli_view import console

    screen, runs = console(), config.of(args).runs
    if found:
        screen.print(_table(args, found))
    count = "1 run has ended" if done == 1 else f"{done} runs have ended"
    say(screen, f"Record: {count}, one for each cell, in {runs}; `coda-synth show RUN{runs_option(args)}` shows one")
    if unfinished:
        said = (
            f"{len(unfinished)} of {done + len(unfinished)} cells are not counted; the same command goes on with them:"
        )
        for line in (said, *(f"  {name}: {why}" for name, why in unfinished.items())):
            say(screen, line)


def _table(args: argparse.Namespace, found: tuple[Line, ...]) -> Any:
    from coda_synth.agent.cli_view import table

    columns: tuple[str, ...] = (
        "author",
        "strategy",
        "runs",
        "pass@1",
        "passed",
        "attempts to pass",
        f"within {args.near:.0%} of bound",
    )
    columns += (f"{args.fast:g} of {args.baseline}'s speed", "$ a run", "tokens a run", "spared")
    rows = [
        (
            *(x.author, x.strategy, str(x.runs), str(x.pass_at_1), str(x.passed), str(x.to_pass), str(x.near)),
            *(str(x.fast), str(x.usd), str(x.tokens), str(x.saved)),
        )
        for x in found
    ]
    return table(columns, rows, title="95 % intervals; times count where they were measured")
