"""What several runs show while they go on side by side: one live table of them all, or lines under their own names."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from coda_synth.agent.budget import Budget
from coda_synth.agent.cli_live import Drawn, Tell, View, drawing, hushed, lines_of, say
from coda_synth.agent.cli_view import console, table
from coda_synth.runs.store import RunWriter
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

_AROUND = 6  # lines of the screen that are not rows of runs


class Overview:
    """Told of all runs; drawn whenever somebody looks. count: of the runs that there will be."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._at_work: Mapping[str, View] = {}
        self._ended: Mapping[str, tuple[View | None, str]] = {}

    def label(self, writer: RunWriter) -> str:
        """The cell of a matrix, or the task; the run where another one is called that."""
        name = writer.run.settings.get("cell", writer.run.task)
        return writer.run.id if name in self._at_work or name in self._ended else name

    def begun(self, label: str, view: View) -> None:
        """Like the next: replaces what is held, and changes nothing in place."""
        self._at_work = {**self._at_work, label: view}

    def over(self, label: str, why: str) -> None:
        self._ended = {**self._ended, label: (self._at_work.get(label), why)}
        self._at_work = {name: view for name, view in self._at_work.items() if name != label}

    def drawn(self, height: int) -> Group:
        """The runs at work before those that have ended, as many as there is room for."""
        working, ended = self._at_work, self._ended
        rows = [_row(label, view, "\n".join(view.in_hand())) for label, view in working.items()]
        rows += [_row(label, view, f"ended: {why}") for label, (view, why) in reversed(tuple(ended.items()))]
        asked = [Text(f"  {folder}") for view in working.values() for folder in view.asked()]
        room = max(2, height - _AROUND)
        shown = rows[: room // 2 if asked else room]
        said = f"{len(working)} at work, {len(ended)} ended, {self._count - len(working) - len(ended)} to come"
        hidden = f" ({len(rows) - len(shown)} not shown)" if len(shown) < len(rows) else ""
        ask = (
            [Text(f"{len(asked)} prompt.md, each to be answered in a reply.md beside it:", style="cyan")]
            if asked
            else []
        )
        made = table(("run", "best", "taken", "now"), shown)
        return Group(Text(f"{said}{hidden}", style="bold"), made, *ask, *asked[: room - len(shown) - 1])


def _row(label: str, view: View | None, now: str) -> tuple[str, str, str, str]:
    return (label, view.lead() if view else "-", view.spend() if view else "-", now)


class Watch:
    """What the runs of one command report to. screen: for lines; live: for the table; neither: nothing is shown."""

    def __init__(self, overview: Overview, screen: Console | None = None, live: Live | None = None) -> None:
        self._overview, self._screen, self._live = overview, screen, live

    def begun(self, writer: RunWriter, budget: Budget) -> tuple[str, Tell]:
        """The run's label, and what to tell its events."""
        label, view = self._overview.label(writer), View(writer, budget)
        self._overview.begun(label, view)
        if self._live is not None:
            return label, drawing(view, self._live)
        if self._screen is not None:
            return label, lines_of(self._screen, writer, label)
        return label, view.tell

    def over(self, label: str, end: Mapping[str, Any]) -> None:
        self._overview.over(label, end["stop"] if "error" in end else end["ended"])
        if self._live is not None:
            self._live.refresh()
        elif self._screen is not None:
            say(self._screen, f"{label}: {end['ended']}")


@contextmanager
def watching_all(args: argparse.Namespace, count: int) -> Iterator[Watch]:
    """The table goes away at the end, when the reports take its place."""
    screen, overview = console(stderr=True), Overview(count)
    if hushed(args):
        yield Watch(overview)
    elif not screen.is_terminal or screen.is_dumb_terminal:
        yield Watch(overview, screen)
    else:
        with Live(Drawn(overview.drawn, screen), console=screen, transient=True) as live:
            yield Watch(overview, live=live)
