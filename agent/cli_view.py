"""How results look on a terminal: the console, the progress line and the tables."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from coda_synth.agent.cli_failure import shown
from coda_synth.evaluator.serial import to_data
from coda_synth.runs.report import AttemptRow
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.table import Table
from rich.text import Text

_LONGEST = 80  # of a word that is never cut
PIPED_WIDTH = 140  # a file or a pipe has no width of its own


class _Console(Console):
    """Where the reader has gone away, the command line decides what that means. What is shown may be anybody's text, a
    candidate's or a receipt's: none of it moves the cursor or colours the screen."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else shown(text), style, control)

    def print(self, *objects: Any, **how: Any) -> None:
        """A table that is wider than the screen goes on in the next line: what stands in it can be copied."""
        wide = any(isinstance(one, Table) for one in objects)
        super().print(*objects, **{"crop": not wide, **how})

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError in hand


def console(stderr: bool = False) -> Console:
    """stdout for results, stderr for progress; colours follow the terminal and NO_COLOR, the width also COLUMNS."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    return _Console(file=stream, width=width, highlight=False, emoji=False)


def print_json(data: Any) -> None:
    """One JSON document on stdout; dataclasses are written as the record writes them."""
    print(json.dumps(to_data(data), indent=2))


class Progress:
    """A line on stderr that says what is being done, and lines above it that stay; nothing at all where it is off."""

    def __init__(self, screen: Console | None, status: Status | None) -> None:
        self._screen, self._status = screen, status

    def say(self, text: str) -> None:
        if self._status:
            self._status.update(Text(text))

    def keep(self, text: str) -> None:
        if self._screen:
            self._screen.print(text, markup=False)


@contextmanager
def progress(args: argparse.Namespace) -> Iterator[Progress]:
    """Off when stderr is no terminal, with --quiet and with --json."""
    screen = console(stderr=True)
    if args.quiet or args.json or not screen.is_terminal:
        yield Progress(None, None)
        return
    with screen.status("starting") as status:
        yield Progress(screen, status)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", right: Sequence[str] = ()) -> Table:
    """A plain table; `right` names the columns of numbers. Lines break between words: no id and no name is cut."""
    made = Table(
        title=title or None, title_justify="left", box=SIMPLE_HEAD, title_style="bold", pad_edge=False, show_edge=False
    )
    for place, name in enumerate(columns):
        number = name in right
        words = " ".join([name, *(row[place] for row in rows)]).split()
        least = min(max(map(len, words), default=1), _LONGEST)
        made.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold", min_width=least)
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def attempts_table(rows: Sequence[AttemptRow]) -> Table:
    """One line an attempt: what was judged, what came out, and why."""
    cells = [
        (str(r.step), r.candidate or "-", r.result, _spills(r.spill_bytes), time_text(r.time_ms, r.measured), r.why)
        for r in rows
    ]
    return table(("step", "candidate", "result", "spills", "time", "why"), cells, right=("step", "spills", "time"))


def _spills(count: int | None) -> str:
    return "-" if count is None else f"{count} B"


def time_text(time_ms: float | None, measured: bool) -> str:
    """A time never goes without the word that says whether it was measured."""
    return "-" if time_ms is None else f"{time_ms:.3f} ms {'measured' if measured else 'modelled'}"


def sizes_text(sizes: Any) -> str:
    """T=8192 D=4096."""
    return " ".join(f"{name}={size}" for name, size in sizes.items())
