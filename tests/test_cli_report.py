"""How a finding of the judge reads on the screen."""

from __future__ import annotations

import io
import re

import pytest
from coda_synth.agent.cli_report import report
from coda_synth.agent.cli_view import attempts_table, console, table
from coda_synth.agent.excerpt import WIDEST
from coda_synth.agent.feedback import feedback
from coda_synth.agent.outline import line
from coda_synth.coda_api.errors import Diagnostic, Edit
from coda_synth.evaluator.evaluation import Candidate, Evaluation, Modelled, Verdict
from coda_synth.runs.record import Attempt
from coda_synth.runs.report import attempt_row
from rich.console import Console


def said(diagnostic: Diagnostic, source: str) -> str:
    evaluation = Evaluation("c", "t", Verdict.REJECTED, "read", 1, diagnostics=(diagnostic,))
    return "\n".join(map(str, report(evaluation, source, "f.coda")))


def test_a_repair_has_a_place_and_says_what_goes() -> None:
    source = "a = b, c"
    assert "at 1:6 delete ', c'" in said(Diagnostic("R", "m", 1, 8, fix=Edit(1, 6, 9, "")), source)
    assert "at 1:5 write 'x' in place of 'b'" in said(Diagnostic("R", "m", 1, 5, fix=Edit(1, 5, 6, "x")), source)
    added = Diagnostic("R", "m", 1, 1, fix=Edit(1, 1, 1, "@kernel\n"))
    assert said(added, source).endswith("at 1:1 write '@kernel\\n'")


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PASSED])
def test_what_did_not_pass_shows_no_time_anywhere(verdict: Verdict) -> None:
    """Records of earlier versions hold what the cost model said of programs that do not fit."""
    model = Modelled("8b", {"T": 1}, "H200", 1, 1, 0.5, 2.447, 1.0)
    candidate, stale = Candidate("t", "text"), ("8b: a: 1 GB; modelled 2.447 ms, 100%",)
    no = (Diagnostic("OverShared", "does not fit"),)
    found = Evaluation(candidate.id, "t", verdict, "build", 1, no, modelled=(model,), profile=stale)
    attempt = Attempt(1, "evaluated", candidate, found)
    screen = Console(file=io.StringIO(), width=140)
    for part in report(found, "text", "f.coda"):
        screen.print(part)
    screen.print(attempts_table([attempt_row(attempt)]))
    for told in (screen.file.getvalue(), feedback(attempt), line(attempt)):
        assert "does not fit" in told and not re.search(r"2\.4|modelled|\d ms", told), told
    assert attempt_row(attempt).time_ms is None and attempt_row(attempt).vs_bare is None


def test_no_text_of_a_candidate_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "x = 1  # \x1b[2J\x1b[1;1HPASSED \x9b31m \u202e"
    told = Diagnostic("R", f"wrong: {evil}", 1, 1)
    found = Evaluation("c", "t", Verdict.REJECTED, "read", 1, diagnostics=(told,), environment={"target": evil})
    screen = console()
    for part in report(found, evil, f"{evil}.coda"):
        screen.print(part)
    screen.print(table(("why",), [(evil,)]))
    screen.print(evil, markup=False)
    shown = capsys.readouterr().out
    assert "PASSED" in shown and not {"\x1b", "\x9b", "\u202e"} & set(shown)


def test_a_map_has_a_legend() -> None:
    mapped = Diagnostic("R", "wrong\nmap of the wrong elements, a cell 1 rows x 1 columns:\n.#")
    assert "# all" in said(mapped, "") and "# all" not in said(Diagnostic("R", "wrong"), "")


@pytest.mark.parametrize("before", [0, 1, 50, 119, 120, 400])
@pytest.mark.parametrize("after", [0, 1, 50, 400])
def test_a_long_line_is_cut_around_its_place(before: int, after: int) -> None:
    source = f"one\n\x1b[1m\t\x0c{'b ' * before}wrong{' a' * after}\r\nthree"
    column = source.split("\n")[1].index("wrong") + 1
    found = Diagnostic("R", "m", 2, column, fix=Edit(2, column, column + 5, "right"))
    shown, marks = said(found, source).split("\n")[-3:-1]
    assert len(shown) <= 8 + WIDEST + 6 and shown.isprintable()
    assert shown[marks.index("^") : marks.rindex("^") + 1] == "wrong"
    attempt = Attempt(
        1, "evaluated", Candidate("t", source), Evaluation("c", "t", Verdict.REJECTED, "read", 1, (found,))
    )
    assert all(len(text) <= WIDEST + 10 for text in feedback(attempt).split("\n") if "wrong" in text)
    assert "\x1b" not in feedback(attempt)
