"""How a run ends on the screen: its attempts, the best candidate, where it lies, why it leads, and what to try next."""

from __future__ import annotations

from pathlib import Path

from coda_synth.agent.cli_view import attempts_table, table, time_text
from coda_synth.evaluator.evaluation import Evaluation, Timing
from coda_synth.runs.leaderboard import Board, Row
from coda_synth.runs.report import Report, Totals, headline
from rich.console import Console


def print_run(screen: Console, report: Report, folder: Path, options: str, note: str = "") -> None:
    """options: what the next commands need to find the same record, as " --runs PATH"."""
    run = report.run
    author = f"{run.provider} {run.model}".strip()
    _say(screen, f"{run.task} by {author}, run {run.id}, started {run.started}")
    if note:
        _say(screen, f"note: {note}")
    screen.print(attempts_table(report.rows))
    for line in [*_best(report, folder), *_cost(report.totals), *_next(report, options)]:
        _say(screen, line)


def _best(report: Report, folder: Path) -> list[str]:
    attempt = report.best
    if attempt is None or attempt.candidate is None or attempt.evaluation is None:
        return [f"No candidate passed; the record is in {folder}"]
    path = folder / "candidates" / f"{attempt.candidate.id}.coda"
    return [
        f"Best:  candidate {attempt.candidate.id}, step {attempt.step}",
        f"Where: {path}",
        f"Why:   {report.why_best}",
        f"Beside it: {_beside(attempt.evaluation)}",
    ]


def _beside(evaluation: Evaluation) -> str:
    """What the time can be compared with, each with its name."""
    figure = headline(evaluation)
    if figure is None:
        return "nothing was timed"
    if isinstance(figure, Timing):
        times = "".join(f"{b.name} {b.median_ms:.3f} ms ({figure.ratio(b.name):.2f}x), " for b in figure.baselines)
        return f"{times}physical bound {figure.bound_ms:.3f} ms"
    return (
        f"bare GEMMs {figure.bare_gemm_ms:.3f} ms, physical bound {figure.bound_ms:.3f} ms; all of it modelled, "
        "a machine with a GPU measures it"
    )


def _cost(totals: Totals) -> list[str]:
    """Nothing for an author that costs nothing."""
    if not totals.input_tokens and not totals.output_tokens:
        return []
    price = "unpriced" if totals.usd is None else f"${totals.usd:.4f}"
    tokens = f"{totals.input_tokens:,} tokens in ({totals.cached_tokens:,} cached), {totals.output_tokens:,} out"
    return [f"Cost:  {tokens}, {price}"]


def _next(report: Report, options: str) -> list[str]:
    run = report.run
    steps = [f"coda-synth show {run.id}{options}", f"coda-synth leaderboard --task {run.task}{options}"]
    if report.best is not None:
        steps.append(f"coda-synth export {run.id}{options} --out exports/{run.task}")
    return ["Next:", *(f"  {step}" for step in steps)]


def print_board(screen: Console, board: Board) -> None:
    """Two tables, never one: an estimate does not rank beside a measurement."""
    for note in board.notes:
        _say(screen, f"note: {note}")
    for title, rows in (("Measured", board.measured), ("Modelled (estimates, not measurements)", board.modelled)):
        if rows:
            screen.print(_board_table(title, rows))
    if not board.measured and not board.modelled:
        _say(screen, "No candidate has passed yet; `coda-synth synth TASK` makes some.")


def _board_table(title: str, rows: tuple[Row, ...]) -> object:
    columns = (
        "task",
        "shape",
        "device",
        "#",
        "candidate",
        "author",
        "time",
        "bare GEMMs",
        "eager",
        "compile",
        "of bound",
        "run",
    )
    cells = [
        (
            *(r.task, r.shape, r.device, str(r.rank), r.candidate, r.author, time_text(r.time_ms, r.measured)),
            *("-" if v is None else f"{v:.2f}x" for v in (r.vs_bare, r.vs_eager, r.vs_compile)),
            *(f"{r.bound_share:.0%}", f"{r.run}/{r.step}"),
        )
        for r in rows
    ]
    return table(columns, cells, title=title, right=("#", "time", "bare GEMMs", "eager", "compile", "of bound"))


def _say(screen: Console, line: str) -> None:
    screen.print(line, markup=False, soft_wrap=True)
