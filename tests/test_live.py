"""The live view through a pseudo-terminal: it draws, it leaves the terminal as it was, and it can be switched off."""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from coda_synth.agent.budget import Budget
from coda_synth.agent.cli_live import View, watching
from coda_synth.agent.events import StageReached, StepEnded, StepStarted
from coda_synth.evaluator.evaluation import Verdict
from rich.console import Console

from tests.test_cli import BAD, environ, scripted
from tests.test_loop import judged, new_run

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
COLOUR = re.compile(r"\x1b\[[\d;]*m")


@dataclass
class Ended:
    code: int
    output: str  # of stdout and stderr together, as the terminal got it

    @property
    def plain(self) -> str:
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", self.output)


def on_a_terminal(
    cwd: Path, *args: str, act: Callable[[str, int], None] = lambda so_far, terminal: None, **more: str
) -> Ended:
    """Runs the command as a terminal would; act: told of the output so far, may type."""
    environment = {k: v for k, v in environ(**{"TERM": "xterm-256color", **more}).items() if v}
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.execve(sys.executable, [sys.executable, "-m", "coda_synth", *args], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    output, deadline = b"", time.monotonic() + 100
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 0.1)
        if ready:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            output += piece
        act(output.decode(errors="replace"), terminal)
    os.close(terminal)
    status = os.waitpid(child, 0)[1]
    return Ended(os.waitstatus_to_exitcode(status), output.decode(errors="replace"))


def left_clean(ended: Ended) -> bool:
    """The cursor is shown again, colours are off, and nothing of the table is left above the report."""
    shown = ended.output.rfind(SHOW) > ended.output.rfind(HIDE) >= 0
    after = ended.output[ended.output.rfind(SHOW) :]
    colours = COLOUR.findall(ended.output)
    return shown and "the author is writing" not in after and (not colours or colours[-1] == "\x1b[0m")


def test_it_draws_and_goes_away(tmp_path: Path) -> None:
    options = (*scripted(tmp_path, BAD, BAD.replace("gem(", "gemn(")), "--device", "cpu", "--attempts", "2")
    ended = on_a_terminal(tmp_path, "synth", "linear_swiglu", *options, NO_COLOR="")
    assert ended.code == 1
    for words in ("linear_swiglu by scripted", "step 1: the author is writing", "1 of 2 attempts", "REJECTED"):
        assert words in ended.plain
    assert "best: none has passed yet" in ended.plain and "0 of 2 attempts, 0:0" in ended.plain
    assert left_clean(ended) and COLOUR.search(ended.output)
    assert ended.plain.rindex("Ended:") > ended.plain.rindex("best: none")


def test_ctrl_c_in_the_middle_leaves_the_terminal_clean(tmp_path: Path) -> None:
    typed: list[int] = []

    def press(so_far: str, terminal: int) -> None:
        if "the author is writing" in so_far and not typed:
            typed.append(os.write(terminal, b"\x03"))

    ended = on_a_terminal(tmp_path, "synth", "linear_swiglu", "--provider", "exchange", act=press)
    assert typed and ended.code == 130 and left_clean(ended)
    assert "Ended:   interrupted" in ended.plain and "Traceback" not in ended.output
    assert set(COLOUR.findall(ended.output)) <= {"\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[1;2m", "\x1b[22m"}  # NO_COLOR


@pytest.mark.parametrize("how", ["", "quiet", "json", "CI", "dumb"])
def test_it_can_be_switched_off(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a terminal as stderr; a dumb one gets lines."""
    monkeypatch.setenv("CI", "true" if how == "CI" else "")
    monkeypatch.setenv("TERM", "dumb" if how == "dumb" else "xterm")
    there, here = pty.openpty()
    args = argparse.Namespace(quiet=how == "quiet", json=how == "json")
    with open(here, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with watching(args, new_run(tmp_path), Budget()) as tell:
            tell(StepEnded(judged(1, Verdict.PASSED), True))
        stderr.flush()
        ready, _, _ = select.select([there], [], [], 0.5)
        output = os.read(there, 65536).decode() if ready else ""
    os.close(there)
    assert (HIDE in output) == (how == "")
    assert ("step 1: PASSED, 1.000 ms modelled, the best so far" in output) == (how == "dumb")
    assert bool(output) == (how in ("", "dumb"))


def test_what_it_shows(tmp_path: Path) -> None:
    view = View(new_run(tmp_path), Budget(attempts=40, usd=2.0))
    for step in range(1, 31):
        view.tell(StepStarted(step, 40))
        view.tell(StepEnded(judged(step, Verdict.PASSED if step == 3 else Verdict.INCORRECT, ms=2.0), step == 3))
    view.tell(StepStarted(31, 40))
    view.tell(StepStarted(32, 40))
    view.tell(StageReached(31, "abc", "check"))
    screen = Console(width=100, height=24, record=True, file=(tmp_path / "shown").open("w"))
    screen.print(view.drawn(screen.height))
    shown = screen.export_text().splitlines()
    assert len(shown) <= 24
    text = "\n".join(shown)
    assert "(16 earlier attempts)" in text and "step 31: candidate abc: check" in text
    assert (
        "step 32: the author is writing" in text and "best: step 3, 2.000 ms modelled, bound 0.500 ms (4.00x)" in text
    )
    assert "30 of 40 attempts, 0:00 of 8 min" in text
