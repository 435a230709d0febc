"""Every rule that a catalogued mistake breaks is answered by an edit, and the edit alone makes the text a program."""

from __future__ import annotations

import pytest
from coda_synth.coda_api.errors import Edit, ProgramError
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task

from benchmarks.mistakes import BREAKING, Mistake


def applied(text: str, edit: Edit) -> str:
    lines = text.split("\n")
    line = lines[edit.line - 1]
    lines[edit.line - 1] = line[: edit.column - 1] + edit.text + line[edit.end_column - 1 :]
    return "\n".join(lines)


@pytest.mark.parametrize("mistake", BREAKING, ids=lambda m: m.name)
def test_the_first_edit_mends_it(mistake: Mistake) -> None:
    typed = signature(task(mistake.task))
    with pytest.raises(ProgramError) as raised:
        read(mistake.text, typed)
    edits = [d.fix for d in raised.value.diagnostics if d.fix]
    assert edits, raised.value
    read(applied(mistake.text, edits[0]), typed)


def test_the_catalogue_is_large() -> None:
    assert len({m.name for m in BREAKING}) == len(BREAKING) >= 25
