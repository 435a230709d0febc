"""Lessons: what a change of a program did to its measured time, kept across runs in one small file.

A lesson is a pair of measurements of parent and child in one run, on one shape of one device, whose intervals do not
overlap. Estimates teach nothing here.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coda_synth.agent.planner_tune import read_hints
from coda_synth.coda_api.canonical import canonical
from coda_synth.coda_api.errors import ProgramError
from coda_synth.coda_api.parsing import parse_statements
from coda_synth.coda_api.program import Kernel, Preparation, Program, walk
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.evaluation import Timing
from coda_synth.evaluator.serial import SerialError, from_data, to_data
from coda_synth.runs import files
from coda_synth.runs.record import Attempt, Run

FILE = "lessons.jsonl"
MOST, TOLD = 200, 8  # kept in the file; told to an author
_LONGEST = 160  # characters of an author's own words
_FEW = 4  # lines of code that are shown


@dataclass(frozen=True, slots=True)
class Lesson:
    """change: what was done, in words; before, after: milliseconds. run, step: where it was measured."""

    task: str
    device: str
    shape: str
    change: str
    before: float
    after: float
    run: str
    step: int

    @property
    def id(self) -> str:
        return hashlib.sha256(f"{self.run}\0{self.step}\0{self.shape}".encode()).hexdigest()[:8]

    @property
    def gain(self) -> float:
        """Above 1 it became faster."""
        return self.before / self.after

    def __str__(self) -> str:
        said = f"{self.gain:.2f}x faster" if self.gain >= 1 else f"{1 / self.gain:.2f}x slower"
        return f"{self.change}: {said} ({self.before:.4g} to {self.after:.4g} ms; {self.task}, {self.device})"


class LessonsError(Exception):
    """The file of lessons cannot be read or written; the message says why."""


def distil(run: Run, attempts: Sequence[Attempt]) -> tuple[Lesson, ...]:
    """What a run's measurements teach."""
    known = {a.candidate.id: a for a in attempts if a.candidate and a.evaluation and a.evaluation.timings}
    found: list[Lesson] = []
    for child in known.values():
        parent = known.get(child.candidate.parent or "") if child.candidate else None
        if parent is not None:
            found += _pair(run, parent, child)
    return tuple(found)


def _pair(run: Run, parent: Attempt, child: Attempt) -> list[Lesson]:
    assert parent.evaluation and child.evaluation and parent.candidate and child.candidate
    change = changed(parent.candidate.source, child.candidate.source)
    before = {(t.shape, t.device): t for t in parent.evaluation.timings}
    pairs = [(before.get((t.shape, t.device)), t) for t in child.evaluation.timings]
    return [
        Lesson(run.task, after.device, after.shape, change, was.median_ms, after.median_ms, run.id, child.step)
        for was, after in pairs
        if was is not None and change and _apart(was, after)
    ]


def _apart(one: Timing, two: Timing) -> bool:
    return one.high_ms < two.low_ms or two.high_ms < one.low_ms


def changed(before: str, after: str) -> str:
    """What was done to a program, in one line; "" where it cannot be told."""
    try:
        old, new = read(before), read(after)
    except ProgramError:
        return ""
    if canonical(old) == canonical(new):
        return _hints(read_hints(before), read_hints(after))
    return _reworked(old, new)


@functools.lru_cache(maxsize=256)  # every prompt of a run asks it of each attempt
def reworked(before: str, after: str) -> str:
    """What changed that is more than a schedule: what can be counted, and the lines of code where they are few; ""
    where only the schedule did."""
    try:
        old, new = read(before), read(after)
    except ProgramError:
        return ""
    if canonical(old) == canonical(new):
        return ""
    return "; ".join(filter(None, (*_counted(old, new), _lines_changed(before, after))))


def _lines_changed(before: str, after: str) -> str:
    """The few lines of code that differ, docstrings and schedule hints apart; "" where they are many."""
    lines = difflib.ndiff(_code(before), _code(after))
    found = [(line[0], line[2:].strip()) for line in lines if line[0] in "-+" and line[2:].strip()]
    return " ".join(f"{sign} `{said}`" for sign, said in found) if len(found) <= _FEW else ""


def _code(text: str) -> list[str]:
    """The lines of a program's units, without hints and docstrings."""
    tree = parse_statements(text)
    for unit in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        unit.decorator_list = [mark.func if isinstance(mark, ast.Call) else mark for mark in unit.decorator_list]
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return ast.unparse(tree).splitlines()


def _reworked(old: Program, new: Program) -> str:
    return "; ".join([*_counted(old, new), _new_words(old.docstring, new.docstring)]).strip("; ")


def _counted(old: Program, new: Program) -> list[str]:
    return [f"{n} {what} instead of {o}" for what, o, n in _facts(old, new) if o != n]


def _new_words(old: str, new: str) -> str:
    """The first of an author's sentences that the parent's text did not have."""
    before, after = (re.split(r"(?<=[.;:])\s+", " ".join(text.split())) for text in (old, new))
    return next((said for said in after if said not in before), "")[:_LONGEST]


def _hints(old: Mapping[str, Mapping[str, object]], new: Mapping[str, Mapping[str, object]]) -> str:
    """The schedule alone changed."""
    said = []
    for kernel in dict.fromkeys([*old, *new]):
        was, now = old.get(kernel, {}), new.get(kernel, {})
        names = [n for n in dict.fromkeys([*was, *now]) if was.get(n) != now.get(n)]
        said += [f"{n} {now.get(n, 'default')} instead of {was.get(n, 'default')}" for n in names]
    return "; ".join(said)


def _facts(old: Program, new: Program) -> list[tuple[str, int, int]]:
    return [(what, count(old), count(new)) for what, count in _COUNTS]


def _launches(program: Program) -> int:
    return sum(not isinstance(c.unit, Preparation) for c in program.live_calls())


def _gemms(program: Program) -> int:
    return sum(isinstance(c.unit, Kernel) and c.unit.gemm is not None for c in program.live_calls())


def _stored(program: Program) -> int:
    """Matrices that kernels write."""
    calls = [c for c in program.live_calls() if isinstance(c.unit, Kernel)]
    values = [c.unit.outputs[n] for c in calls for n in program.live_outputs(c)]
    return sum(v.form == "tile" and v.rows is not None and v.cols is not None for v in values)


def _prepared(program: Program) -> int:
    calls = [c for c in program.live_calls() if isinstance(c.unit, Preparation)]
    return sum(v.word not in ("param", "number") for c in calls for v in walk(c.unit.outputs))


_COUNTS = (
    ("launches", _launches),
    ("GEMMs", _gemms),
    ("stored matrices", _stored),
    ("steps of preparing weights", _prepared),
)


def load(root: Path) -> tuple[Lesson, ...]:
    """The lessons beside the runs, oldest first, without damaged lines; raises LessonsError."""
    return tuple(found for _, _, found in _lines(root) if isinstance(found, Lesson))


def damaged(root: Path) -> tuple[str, ...]:
    """What is said of each line that is no lesson."""
    wrong = [(number, found) for number, _, found in _lines(root) if isinstance(found, str)]
    return tuple(f"{root / FILE}, line {number} is no lesson and is left out ({found})" for number, found in wrong)


def _lines(root: Path) -> list[tuple[int, str, Lesson | str]]:
    """Each line with its number, and the lesson or what is wrong with it."""
    path = root / FILE
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    except OSError as error:
        raise LessonsError(f"{path} cannot be read ({error.strerror}); remove it to begin anew") from None
    return [(number, line, _lesson(line)) for number, line in enumerate(lines, 1) if line.strip()]


def _lesson(line: str) -> Lesson | str:
    try:
        found: Lesson = from_data(Lesson, json.loads(line))
    except (ValueError, SerialError) as error:
        return str(error)
    return found


def save(root: Path, lessons: Iterable[Lesson]) -> tuple[Lesson, ...]:
    """Replaces the file: the latest MOST, each once, after damaged lines, which only a person takes away; raises
    LessonsError."""
    kept = tuple({lesson.id: lesson for lesson in lessons}.values())[-MOST:]
    lines = [line for _, line, found in _lines(root) if isinstance(found, str)]
    lines += [json.dumps(to_data(lesson)) for lesson in kept]
    try:
        files.replace(root / FILE, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise LessonsError(f"cannot write {root / FILE}: {error.strerror}") from None
    return kept


def learn(root: Path, run: Run, attempts: Sequence[Attempt]) -> int:
    """Adds what a run teaches; the number of lessons that were new. Runs that end at the same time wait for each other:
    each reads the file and replaces it."""
    new = distil(run, attempts)
    if not new:
        return 0
    with files.alone(root):
        before = load(root)
        known = {lesson.id for lesson in before}
        save(root, [*before, *new])
    return sum(lesson.id not in known for lesson in new)


def told(lessons: Sequence[Lesson], task: str, device: str) -> tuple[str, ...]:
    """The few for an author: the same device only, this task's first, then the largest effects, each change once."""
    here = [lesson for lesson in lessons if lesson.device == device]
    order = sorted(here, key=lambda x: (x.task != task, -abs(x.before - x.after) / x.before, x.id))
    once = {lesson.change: lesson for lesson in reversed(order)}
    return tuple(str(lesson) for lesson in order if once[lesson.change] is lesson)[:TOLD]
