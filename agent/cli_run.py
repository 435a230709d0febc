"""How a run ends on the screen: its attempts, the best candidate, where it lies, why it leads, and what to try next."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coda_synth.agent.budget import UNFINISHED, Stop
from coda_synth.agent.cli_view import attempts_table, table, time_text
from coda_synth.evaluator.evaluation import Evaluation, Modelled, Timing
from coda_synth.runs.leaderboard import Board, Row
from coda_synth.runs.report import Report, Totals, headline, time_ms
from rich.console import Console
from rich.table import Table


def print_run(
    screen: Console, report: Report, folder: Path, options: str, remark: str = "", stop: str = Stop.INTERRUPTED
) -> None:
    """options: what the next commands need to find the same record, as " --runs PATH". stop: why the run ended."""
    run = report.run
    author = f"{run.provider} {run.model}".strip()
    _say(screen, f"{run.task} by {author}, run {run.id}, started {run.started}")
    if report.rows:
        screen.print(attempts_table(report.rows))
        _say(screen, "")
    remarks = [remark] if remark else []
    for line in [*remarks, *_best(report, folder), *_cost(report.totals), *_next(report, options, stop)]:
        _say(screen, line)


def _best(report: Report, folder: Path) -> list[str]:
    attempt = report.best
    if attempt is None or attempt.candidate is None or attempt.evaluation is None:
        said = "No candidate passed" if report.rows else "No candidate was judged yet"
        return [f"{said}; the record is in {folder}"]
    figure = headline(attempt.evaluation)
    time = f", {_time(figure)} on {figure.shape} ({figure.device})" if figure else ""
    return [
        f"Best:    candidate {attempt.candidate.id}, step {attempt.step}{time}",
        f"Where:   {folder / 'candidates' / f'{attempt.candidate.id}.coda'}",
        f"Why:     {report.why_best}",
        f"Against: {_beside(attempt.evaluation)}",
    ]


def _time(figure: Timing | Modelled) -> str:
    return time_text(time_ms(figure), isinstance(figure, Timing))


def _beside(evaluation: Evaluation) -> str:
    """What the time can be compared with, each with its name."""
    figure = headline(evaluation)
    if figure is None:
        return "nothing was timed"
    if isinstance(figure, Timing):
        times = "".join(f"{b.name} {b.median_ms:.3f} ms ({figure.ratio(b.name):.2f}x), " for b in figure.baselines)
        return f"{times}bound {figure.bound_ms:.3f} ms"
    return (
        f"bare GEMMs {figure.bare_gemm_ms:.3f} ms, bound {figure.bound_ms:.3f} ms; all of it modelled, "
        "a machine with a GPU measures it"
    )


def _cost(totals: Totals) -> list[str]:
    """Nothing for an author that costs nothing."""
    if not totals.input_tokens and not totals.output_tokens:
        return []
    price = "unpriced" if totals.usd is None else f"${totals.usd:.4f}"
    tokens = f"{totals.input_tokens:,} tokens in ({totals.cached_tokens:,} cached), {totals.output_tokens:,} out"
    return [f"Cost:  {tokens}, {price}"]


def _next(report: Report, options: str, stop: str) -> list[str]:
    run, command = report.run, command_name()
    first = []
    if stop in UNFINISHED:
        first = [f"{command} resume {run.id}{options}"]
    elif stop == Stop.STUCK:
        ask = f"{command} synth {run.task}{options} --provider"
        first = [f"{ask} exchange    # you, or any agent, write the program", f"{ask} anthropic   # or another model"]
    steps = [*first, f"{command} show {run.id}{options}"] if report.rows or not first else first
    if report.best is not None:
        steps.append(f"{command} leaderboard --task {run.task}{options}")
        steps.append(f"{command} export {run.id}{options} --out exports/{run.task}")
    return ["Next:", *(f"  {step}" for step in steps)]


def print_summary(screen: Console, ends: Sequence[Mapping[str, Any]]) -> None:
    """One line for each of several runs: what came out, the best time, and where it lies."""
    cells = []
    for end in ends:
        attempt, candidate, time = end["report"] and end["report"].best, "-", "-"
        if attempt is not None and attempt.evaluation is not None and attempt.candidate is not None:
            figure = headline(attempt.evaluation)
            time = _time(figure) if figure else "untimed"
            candidate = attempt.candidate.id
        outcome = "passed" if attempt else "waits" if end["waiting"] else "none passed"
        cells.append((end["task"], outcome, candidate, time, end["ended"], end["folder"] or "-"))
    passed = sum(cell[1] == "passed" for cell in cells)
    title = f"{passed} of {len(ends)} passed"
    _say(screen, "")
    screen.print(table(("task", "outcome", "best", "time", "ended", "where"), cells, title=title, right=("time",)))


def command_name() -> str:
    """What to type here to reach this very command: its name, if the PATH leads to it, else as it was called."""
    called = Path(sys.argv[0])
    if called.name != "coda-synth":
        return "python -m coda_synth"
    found = shutil.which("coda-synth")
    return "coda-synth" if found and Path(found).resolve() == called.resolve() else str(called)


def print_board(screen: Console, board: Board, options: str) -> None:
    """One table a task and device; an estimate never stands beside a measurement. options: as for print_run."""
    for note in board.notes:
        _say(screen, f"note: {note}")
    for rows in (board.measured, board.modelled):
        for (task, device), group in itertools.groupby(rows, key=lambda row: (row.task, row.device)):
            found = tuple(group)
            how = "measured on" if found[0].measured else "modelled (estimates, not measurements) for"
            screen.print(_board_table(f"{task}, {how} {device}", found))
            _say(screen, "")
    if not board.measured and not board.modelled:
        _say(screen, f"No candidate has passed yet; `coda-synth synth TASK{options}` makes some.")


def _board_table(title: str, rows: tuple[Row, ...]) -> Table:
    """Only peers that somebody was compared with have a column."""
    peers = {"bare GEMMs": [r.vs_bare for r in rows], "eager": [r.vs_eager for r in rows]}
    peers |= {"torch.compile": [r.vs_compile for r in rows]}
    shown = [name for name, ratios in peers.items() if any(ratios)]
    columns = ("shape", "#", "candidate", "time", *(f"vs {name}" for name in shown), "of bound", "author", "run/step")
    cells = [
        (
            *(r.shape, str(r.rank), r.candidate, f"{r.time_ms:.3f} ms"),
            *("-" if (ratio := peers[name][i]) is None else f"{ratio:.2f}x" for name in shown),
            *(f"{r.bound_share:.0%}", r.author, f"{r.run}/{r.step}"),
        )
        for i, r in enumerate(rows)
    ]
    return table(columns, cells, title=title, right=("#", "time", "of bound", *(f"vs {name}" for name in shown)))


def _say(screen: Console, line: str) -> None:
    screen.print(line, markup=False, soft_wrap=True)
