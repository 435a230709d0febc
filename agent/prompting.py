"""Builds the prompt of one step: task, words and attempts as texts, which coda_synth.prompts puts together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coda_synth.agent.feedback import feedback, line
from coda_synth.agent.provider import Prompt
from coda_synth.agent.strategy import NO_CHOICE, REPAIRS, Choice
from coda_synth.coda_api.cost import bound_s
from coda_synth.coda_api.devices import device
from coda_synth.coda_api.schedule import HINTS
from coda_synth.coda_api.words import WORDS, Word
from coda_synth.evaluator.signature import signature
from coda_synth.prompts.build import build_prompt
from coda_synth.runs.record import Attempt
from coda_synth.tasks.catalog import task_names, worked_candidate

if TYPE_CHECKING:
    from coda_synth.coda_api.program import Signature
    from coda_synth.tasks.spec import TaskSpec

LONGEST_REPLY = 2000  # characters of a reply without a program that its author sees again


def prompt(
    task: TaskSpec, history: tuple[Attempt, ...] = (), choice: Choice = NO_CHOICE, target: str = "sm_90"
) -> Prompt:
    """What a model is told at this step of a run; without a history, its first request. target: as for the judge."""
    examples = {name: worked_candidate(name) for name in task_names()}
    told = _history(history, choice) if history else None
    system, user = build_prompt(_words(), HINTS, examples, _task(task, target), _shapes(task, target), told)
    return Prompt(system, user)


@functools.cache
def _words() -> tuple[tuple[str, str, str, str, str], ...]:
    return tuple((word.group.value, _units(word), word.signature, word.doc, word.example) for word in WORDS)


def _units(word: Word) -> str:
    return ", ".join(sorted(place.value for place in word.places))


def _task(task: TaskSpec, target: str) -> Mapping[str, str]:
    typed = signature(task, task.dtypes[0])
    parameters = ", ".join(f"{i.name}: {i.type}" for i in typed.inputs)
    outputs = [f"{o.name} [{', '.join(map(str, o.dims))}] ({o.dtype})" for o in typed.outputs]
    in_place = _with_role(typed, "in_place")
    return {
        "name": task.name,
        "summary": task.summary,
        "source": inspect.getsource(task.reference).strip(),
        "header": f"def {task.name}({parameters}):",
        "outputs": ", ".join(outputs),
        "weights": _with_role(typed, "weight") + (f". In-place inputs: {in_place}" if in_place != "none" else ""),
        "dtype": typed.dtype,
        "device": device(target).name,
    }


def _with_role(typed: Signature, role: str) -> str:
    return ", ".join(i.name for i in typed.inputs if i.role == role) or "none"


def _shapes(task: TaskSpec, target: str) -> list[tuple[str, str, float]]:
    """Label, sizes and the bound in microseconds."""
    typed, part = signature(task, task.dtypes[0]), device(target)
    return [
        (label, ", ".join(f"{n}={s}" for n, s in sizes.items()), 1e6 * bound_s(typed, task.gemms, sizes, part))
        for label, sizes in task.time_shapes.items()
    ]


def _history(history: tuple[Attempt, ...], choice: Choice) -> Mapping[str, object]:
    """The candidate to work on, the best, and a line for each of the others."""
    focus = _focus(choice)
    shown = {a.step for a in (focus, choice.best) if a is not None}
    return {
        "last": _shown(focus, _remark(choice, focus)),
        "best": _shown(choice.best) if choice.best is not None else None,
        "others": [line(a) for a in history if a.step not in shown],
    }


def _focus(choice: Choice) -> Attempt:
    """The last reply, if it holds a program; else what there is to work on, if anything."""
    assert choice.last is not None  # there is a history
    return choice.last if choice.last.evaluation is not None else choice.focus or choice.last


def _shown(attempt: Attempt, remark: str = "") -> Mapping[str, str]:
    report = feedback(attempt)
    program = attempt.candidate.source if attempt.candidate else attempt.reply[:LONGEST_REPLY]
    verdict = attempt.evaluation.verdict.value if attempt.evaluation else "no program to judge"
    name = attempt.candidate.id if attempt.candidate else f"step {attempt.step}"
    return {"id": name, "program": program, "verdict": verdict, "report": f"{report}\n\n{remark}" if remark else report}


def _remark(choice: Choice, focus: Attempt) -> str:
    """What the report on the program shown does not say."""
    if choice.last is not None and choice.last is not focus:
        return f"It was followed by a reply without a new program. {feedback(choice.last)}"
    if choice.focus is not None and choice.focus is not focus:
        return f"This was the last of {REPAIRS + 1} failures in a row: leave it, and improve the best instead."
    return ""
