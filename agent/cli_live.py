"""What a run shows while it goes on: a live table on a terminal, a line for each attempt elsewhere; on stderr."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from coda_synth.agent.budget import Budget, spent
from coda_synth.agent.cli_view import console, table, time_text
from coda_synth.agent.events import Event, StageReached, StepEnded, StepStarted
from coda_synth.agent.exchange import NAMES
from coda_synth.evaluator.evaluation import Timing
from coda_synth.runs.ranking import best
from coda_synth.runs.report import attempt_row, headline, time_ms
from coda_synth.runs.store import place_after
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from coda_synth.runs.record import Attempt
    from coda_synth.runs.store import RunWriter

_AROUND = 10  # lines of the screen that are not rows of attempts
_WRITING = "the author is writing"


def _asked(writer: RunWriter, step: int) -> str:
    """Where a person finds the question, and where the answer belongs."""
    folder = writer.step(place_after(writer.attempts) + step - len(writer.attempts) - 1)
    return f"{_WRITING}: the prompt is {folder / 'prompt.md'}; put the reply into {folder / NAMES[0]}"


class View:
    """Told of what happens in one run; drawn whenever somebody looks."""

    def __init__(self, writer: RunWriter, budget: Budget) -> None:
        self._run, self._budget = writer.run, budget
        asked = partial(_asked, writer)
        self._said: Callable[[int], str] = asked if writer.run.provider == "exchange" else lambda step: _WRITING
        self._attempts: tuple[Attempt, ...] = writer.attempts
        self._before, self._started = spent(self._attempts).seconds, time.monotonic()
        self._now: Mapping[int, str] = {}  # steps in hand, and what is being done

    def tell(self, event: Event) -> None:
        """Replaces what it holds and changes nothing in place: it is drawn from another thread."""
        if isinstance(event, StepStarted):
            self._now = {**self._now, event.step: self._said(event.step)}
        elif isinstance(event, StageReached):
            self._now = {**self._now, event.step: f"candidate {event.candidate}: {event.stage}"}
        else:
            self._attempts += (event.attempt,)
            self._now = {step: said for step, said in self._now.items() if step > event.attempt.step}

    def drawn(self, height: int) -> Group:
        """As many of the last attempts as there is room for, between the run's name and where it stands."""
        rows = [attempt_row(a) for a in self._attempts[-max(1, height - _AROUND) :]]
        cells = [(str(r.step), r.candidate or "-", r.result, time_text(r.time_ms, r.measured)) for r in rows]
        shown = table(("step", "candidate", "result", "time"), cells, right=("step", "time"))
        hidden = len(self._attempts) - len(rows)
        title = f"{self._run.task} by {self._run.provider} {self._run.model}".strip()
        more = [Text(f"({hidden} earlier attempts)", style="dim")] if hidden else []
        now = [Text(f"step {step}: {said}", style="cyan") for step, said in sorted(self._now.items())]
        attempts: list[RenderableType] = [*more, shown] if cells else []
        return Group(Text(title, style="bold"), *attempts, *now, Text(self._lead()), Text(self._spend()))

    def _lead(self) -> str:
        leader = best(self._attempts)
        figure = headline(leader.evaluation) if leader is not None and leader.evaluation is not None else None
        if leader is None or figure is None:
            return "best: none has passed yet"
        ms = time_ms(figure)
        against = f"bound {figure.bound_ms:.3f} ms ({ms / figure.bound_ms:.2f}x)" if figure.bound_ms else "no bound"
        return f"best: step {leader.step}, {time_text(ms, isinstance(figure, Timing))}, {against}"

    def _spend(self) -> str:
        took, budget = spent(self._attempts), self._budget
        parts = [f"{took.attempts} of {budget.attempts} attempts"]
        if took.tokens:
            limit = f" of ${budget.usd:.2f}" if budget.usd is not None else ""
            parts += [f"{took.tokens:,} tokens", "unpriced" if took.unpriced else f"${took.usd:.2f}{limit}"]
        if took.gpu_seconds:
            parts.append(f"{took.gpu_seconds:.0f} GPU seconds")
        minutes, seconds = divmod(int(self._before + time.monotonic() - self._started), 60)
        return ", ".join([*parts, f"{minutes}:{seconds:02} of {budget.minutes:g} min"])


class _Drawn:
    """A view as the screen asks for it, again and again, as large as the screen is then."""

    def __init__(self, view: View, screen: Console) -> None:
        self._view, self._screen = view, screen

    def __rich__(self) -> Group:
        return self._view.drawn(self._screen.height)


class Watch:
    """Told of the events of one run; shows them, or does not."""

    def __init__(
        self,
        view: View | None = None,
        live: Live | None = None,
        lines: Console | None = None,
        task: str = "",
        asked: Callable[[int], str] | None = None,
    ) -> None:
        self._view, self._live, self._lines, self._task, self._asked = view, live, lines, task, asked

    def tell(self, event: Event) -> None:
        if self._view is not None and self._live is not None:
            self._view.tell(event)
            if isinstance(event, StepEnded):
                self._live.refresh()
        elif self._lines is not None and isinstance(event, StepStarted) and self._asked:
            self._lines.print(
                f"{self._task}, step {event.step}: {self._asked(event.step)}", markup=False, soft_wrap=True
            )
        elif self._lines is not None and isinstance(event, StepEnded):
            row = attempt_row(event.attempt)
            lead = ", the best so far" if event.leads else ""
            said = f"{self._task}, step {row.step}: {row.result}, {time_text(row.time_ms, row.measured)}{lead}"
            self._lines.print(said, markup=False, soft_wrap=True)


@contextmanager
def watching(args: argparse.Namespace, writer: RunWriter, budget: Budget) -> Iterator[Watch]:
    """Nothing with --quiet, with --json, and in CI; the table goes away at the end, when the report takes its place."""
    screen = console(stderr=True)
    if args.quiet or args.json or os.environ.get("CI", "").lower() not in ("", "0", "false"):
        yield Watch()
    elif not screen.is_terminal or screen.is_dumb_terminal:
        asked = partial(_asked, writer) if writer.run.provider == "exchange" else None
        yield Watch(lines=screen, task=writer.run.task, asked=asked)
    else:
        view = View(writer, budget)
        with Live(_Drawn(view, screen), console=screen, transient=True) as live:
            yield Watch(view, live)
