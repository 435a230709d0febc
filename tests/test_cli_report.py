"""How a finding of the judge reads on the screen."""

from __future__ import annotations

from coda_synth.agent.cli_report import report
from coda_synth.coda_api.errors import Diagnostic, Edit
from coda_synth.evaluator.evaluation import Evaluation, Verdict


def said(diagnostic: Diagnostic, source: str) -> str:
    evaluation = Evaluation("c", "t", Verdict.REJECTED, "read", 1, diagnostics=(diagnostic,))
    return "\n".join(map(str, report(evaluation, source, "f.coda")))


def test_a_repair_has_a_place_and_says_what_goes() -> None:
    source = "a = b, c"
    assert "at 1:6 delete ', c'" in said(Diagnostic("R", "m", 1, 8, fix=Edit(1, 6, 9, "")), source)
    assert "at 1:5 write 'x' in place of 'b'" in said(Diagnostic("R", "m", 1, 5, fix=Edit(1, 5, 6, "x")), source)
    added = Diagnostic("R", "m", 1, 1, fix=Edit(1, 1, 1, "@kernel\n"))
    assert said(added, source).endswith("at 1:1 write '@kernel\\n'")


def test_a_map_has_a_legend() -> None:
    mapped = Diagnostic("R", "wrong\nmap of the wrong elements, a cell 1 rows x 1 columns:\n.#")
    assert "# all" in said(mapped, "") and "# all" not in said(Diagnostic("R", "wrong"), "")
