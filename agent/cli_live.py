"""What a run shows while it goes on: a live table on a terminal, a line for each attempt elsewhere; on stderr."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
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


def folder_of(writer: RunWriter, step: int) -> Path:
    """Where the question of a step in hand lies."""
    return writer.step(place_after(writer.attempts) + step - len(writer.attempts) - 1)


def asked_where(folder: Path) -> str:
    """Where a person finds the question, and where the answer belongs."""
    return f": the prompt is {folder / 'prompt.md'}; put the reply into {folder / NAMES[0]}"


def by_person(writer: RunWriter) -> bool:
    """Whether the author must be told where its questions lie, and takes what time it likes."""
    return writer.run.provider == "exchange"


@dataclass(frozen=True, slots=True)
class _InHand:
    """A step, and what is being done. since: when it began; working: since when it counts for the budget, if it does.
    asked: where a person is to answer."""

    said: str
    since: float
    working: float | None
    asked: Path | None = None

    def __str__(self) -> str:
        return f"{self.said}, {_clock(time.monotonic() - self.since)}"


class View:
    """Told of what happens in one run; drawn whenever somebody looks."""

    def __init__(self, writer: RunWriter, budget: Budget) -> None:
        self._writer, self._run, self._budget = writer, writer.run, budget
        self._attempts: tuple[Attempt, ...] = writer.attempts
        self._now: Mapping[int, _InHand] = {}

    def tell(self, event: Event) -> None:
        """Replaces what it holds and changes nothing in place: it is drawn from another thread."""
        now = time.monotonic()
        if isinstance(event, StepStarted):
            asked = folder_of(self._writer, event.step) if by_person(self._writer) else None
            self._now = {**self._now, event.step: _InHand(_WRITING, now, None if asked else now, asked)}
        elif isinstance(event, StageReached):
            before = self._now.get(event.step, _InHand("", now, now))
            said = f"candidate {event.candidate}: {event.stage}"
            working = now if before.working is None else before.working
            self._now = {**self._now, event.step: replace(before, said=said, working=working, asked=None)}
        else:
            self._attempts += (event.attempt,)
            self._now = {step: hand for step, hand in self._now.items() if step > event.attempt.step}

    def drawn(self, height: int) -> Group:
        """As many of the last attempts as there is room for, between the run's name and where it stands."""
        rows = [attempt_row(a) for a in self._attempts[-max(1, height - _AROUND) :]]
        cells = [(str(r.step), r.candidate or "-", r.result, time_text(r.time_ms, r.measured)) for r in rows]
        shown = table(("step", "candidate", "result", "time"), cells, right=("step", "time"))
        hidden = len(self._attempts) - len(rows)
        title = f"{self._run.task} by {self._run.provider} {self._run.model}".strip()
        more = [Text(f"({hidden} earlier attempts)", style="dim")] if hidden else []
        where = [asked_where(folder) for folder in self.asked()]
        now = [Text(said + asked, style="cyan") for said, asked in zip_longest(self.in_hand(), where, fillvalue="")]
        attempts: list[RenderableType] = [*more, shown] if cells else []
        return Group(Text(title, style="bold"), *attempts, *now, Text(f"best: {self.lead()}"), Text(self.spend()))

    def in_hand(self) -> list[str]:
        """A line for each step that is being worked on."""
        return [f"step {step}: {hand}" for step, hand in sorted(self._now.items(), key=lambda item: item[0])]

    def asked(self) -> list[Path]:
        """The folders in which a person is to answer; a person is asked for one step at a time."""
        return [hand.asked for hand in self._now.values() if hand.asked is not None]

    def lead(self) -> str:
        """The best step, its time and what it is compared with."""
        leader = best(self._attempts)
        figure = headline(leader.evaluation) if leader is not None and leader.evaluation is not None else None
        if leader is None or figure is None:
            return "none has passed yet"
        ms = time_ms(figure)
        against = f"bound {figure.bound_ms:.3f} ms ({ms / figure.bound_ms:.2f}x)" if figure.bound_ms else "no bound"
        return f"step {leader.step}, {time_text(ms, isinstance(figure, Timing))}, {against}"

    def spend(self) -> str:
        """What was taken of each budget."""
        took, budget = spent(self._attempts), self._budget
        parts = [f"{took.attempts} of {budget.attempts} attempts"]
        if took.tokens:
            limit = f" of ${budget.usd:.2f}" if budget.usd is not None else ""
            parts += [f"{took.tokens:,} tokens", "unpriced" if took.unpriced else f"${took.usd:.2f}{limit}"]
        if took.gpu_seconds:
            parts.append(f"{took.gpu_seconds:.0f} GPU seconds")
        return ", ".join([*parts, f"{_clock(took.seconds + self._working())} of {budget.minutes:g} min"])

    def _working(self) -> float:
        """Seconds for which the steps in hand have been worked on."""
        return max((time.monotonic() - hand.working for hand in self._now.values() if hand.working), default=0.0)


def _clock(seconds: float) -> str:
    """0:07, 12:34, 1:02:03."""
    hours, rest = divmod(int(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


class Drawn:
    """A view as the screen asks for it, again and again, as large as the screen is then."""

    def __init__(self, draw: Callable[[int], Group], screen: Console) -> None:
        self._draw, self._screen = draw, screen

    def __rich__(self) -> Group:
        return self._draw(self._screen.height)


Tell = Callable[[Event], None]


def drawing(view: View, live: Live) -> Tell:
    """Draws again at once where an attempt has ended, and else as often as the screen does by itself."""

    def tell(event: Event) -> None:
        view.tell(event)
        if isinstance(event, StepEnded):
            live.refresh()

    return tell


def line_by_line(screen: Console, label: str, asked: Callable[[int], Path] | None) -> Tell:
    """A line for each attempt, and for each question to a person. label: of the run, before each of its lines."""

    def tell(event: Event) -> None:
        if isinstance(event, StepStarted) and asked:
            say(screen, f"{label}, step {event.step}: {_WRITING}{asked_where(asked(event.step))}")
        elif isinstance(event, StepEnded):
            row = attempt_row(event.attempt)
            lead = f", the best so far{f' ({event.slightly})' if event.slightly else ''}" if event.leads else ""
            say(screen, f"{label}, step {row.step}: {row.result}, {time_text(row.time_ms, row.measured)}{lead}")

    return tell


def say(screen: Console, line: str) -> None:
    screen.print(line, markup=False, soft_wrap=True)


def lines_of(screen: Console, writer: RunWriter, label: str = "") -> Tell:
    """The lines of one run, under its task's name if nothing else is said."""
    return line_by_line(screen, label or writer.run.task, partial(folder_of, writer) if by_person(writer) else None)


def hushed(args: argparse.Namespace) -> bool:
    """With --quiet, with --json, and in CI."""
    return bool(args.quiet or args.json or os.environ.get("CI", "").lower() not in ("", "0", "false"))


@contextmanager
def watching(args: argparse.Namespace, writer: RunWriter, budget: Budget) -> Iterator[Tell]:
    """What to tell the events of one run. The table goes away at the end, when the report takes its place."""
    screen = console(stderr=True)
    if hushed(args):
        yield lambda event: None
    elif not screen.is_terminal or screen.is_dumb_terminal:
        yield lines_of(screen, writer)
    else:
        view = View(writer, budget)
        with Live(Drawn(view.drawn, screen), console=screen, transient=True) as live:
            yield drawing(view, live)
