"""Programs that break one rule each, at least three a rule: bad/<Rule>/<n>.coda, whose first line says where.

`# expect Rule line:column`; with ", last line 7000 times" the last line is repeated: a huge text is a small file. A
program with the name of a task, or with ", for TASK", is read with that task's signature and shapes.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from coda_synth.coda_api import rules
from coda_synth.coda_api.errors import ProgramError
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names

BAD = Path(__file__).parent / "bad"
RULES = sorted(name for name, c in vars(rules).items() if inspect.isclass(c) and issubclass(c, rules.Broken))
PROGRAMS = sorted(BAD.rglob("*.coda"))
_EXPECTED = re.compile(r"# expect (\w+) (\d+):(\d+)(?:, last line (\d+) times)?(?:, for (\w+))?\n")


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_bad_program_breaks_its_rule_at_its_place(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    expected = _EXPECTED.match(text)
    assert expected and expected[1] == file.parent.name
    if expected[4]:
        text += text.splitlines(keepends=True)[-1] * (int(expected[4]) - 1)
    own = re.search(r"@program\ndef (\w+)\(", text)
    name = expected[5] or (own[1] if own else "")
    with pytest.raises(ProgramError) as caught:
        if name in task_names():
            read(text, signature(task(name)), (*task(name).time_shapes.values(), *task(name).check_shapes))
        else:
            read(text)
    found = [(d.rule, d.line, d.column) for d in caught.value.diagnostics]
    assert found == [(expected[1], int(expected[2]), int(expected[3]))]


def test_every_rule_is_broken_in_three_ways() -> None:
    """By three texts that differ in more than where they stand."""
    for rule in set(RULES) - {"Broken"}:
        texts = {file.read_text(encoding="utf-8").split("\n", 1)[1] for file in (BAD / rule).glob("*.coda")}
        assert len(texts) >= 3, rule
    assert {file.parent.name for file in PROGRAMS} == set(RULES) - {"Broken"}
