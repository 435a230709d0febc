"""Builds the prompt of one step: task, words and attempts as texts, which coda_synth.prompts puts together."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from coda_synth.agent.budget import Budget, remaining, told_for_nothing
from coda_synth.agent.examples import examples
from coda_synth.agent.feedback import feedback, nothing_to_win
from coda_synth.agent.no_gain import no_gain
from coda_synth.agent.outline import line
from coda_synth.agent.provider import Prompt
from coda_synth.agent.strategy import NO_CHOICE, Choice, failures_at_the_end
from coda_synth.agent.untried import untried
from coda_synth.coda_api.cost import LAUNCH_S, bare_gemm_s, bound_s, floor_s
from coda_synth.coda_api.default_schedules import PASSES
from coda_synth.coda_api.devices import device
from coda_synth.coda_api.program import TypeKind
from coda_synth.coda_api.schedule import NEEDS, hint_table
from coda_synth.coda_api.words import WORDS, Word
from coda_synth.evaluator.signature import signature
from coda_synth.prompts.build import build_prompt, language_reference
from coda_synth.runs.ranking import ranked
from coda_synth.runs.record import Attempt
from coda_synth.runs.report import slight_lead

if TYPE_CHECKING:
    from coda_synth.coda_api.program import Signature
    from coda_synth.tasks.spec import Sizes, TaskSpec

_REPAIR = "Send one program that repairs these."
_IMPROVE = (
    "Send one program that improves on the best, or repairs the last. Where you see nothing left to win, send no"
    " program but one line, `done: ` and why: that ends the run, and costs no attempt."
)
_DONE = (
    "Nothing is left to win above the GEMMs alone: the reply that is expected is one line, `done: ` and why, which ends"
    " the run and costs no attempt. Send a program only where you know one that needs less than these GEMMs."
)
_FOR_NOTHING = " Hints alone were wrong, which cost none this once."
_SOURCES: dict[object, str] = {}
LONGEST_REPLY = 2000  # characters of a reply without a program that its author sees again


class Told(Protocol):
    """What a prompt depends on beside task and history: the loop's settings."""

    @property
    def budget(self) -> Budget: ...

    @property
    def target(self) -> str: ...

    @property
    def lessons(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Plain:
    """The settings of a prompt that belongs to no run."""

    budget: Budget = field(default_factory=Budget)
    target: str = "sm_90"
    lessons: tuple[str, ...] = ()


def prompt(
    task: TaskSpec, history: tuple[Attempt, ...] = (), choice: Choice = NO_CHOICE, told: Told | None = None
) -> Prompt:
    """What a model is told at this step of a run; without a history, its first request. told: the run's settings."""
    told = told or Plain()
    shown = history if history and not choice.alone else ()
    system, user = build_prompt(
        _words(),
        hint_table(),
        examples(task.name),
        _task(task, told.target),
        _shapes(task, told.target),
        _history(task, shown, choice, told) if shown else None,
        needs=f"{NEEDS}. {PASSES}",
        device=_device(told.target),
        lessons=told.lessons,
    )
    return Prompt(system, f"{user}\n\n{choice.hint}" if choice.hint and not shown else user)


def language() -> str:
    """The language as a model is told it: its rules, hints and words (docs/language.md)."""
    return language_reference(_words(), hint_table(), f"{NEEDS}. {PASSES}")


def as_text(told: Prompt) -> str:
    """The whole prompt as one text, for people and for the exchange."""
    return f"{told.system}\n\n{told.user}\n"


def later_text(told: Prompt, system: str) -> str:
    """The same for one who has read the system text already; system: the name of its file in the run's folder."""
    return f"{system} in the run's folder still holds: role, language, device, examples.\n\n{told.user}\n"


def _device(target: str) -> list[str]:
    """What an author can reckon with; sustained rates, as measured."""
    part = device(target)
    per_byte = part.matmul_flops_per_s / part.copy_bytes_per_s
    return [
        f"{part.name} ({part.target}): {part.sms} SMs, {part.shared_bytes:,} bytes of shared memory a block, "
        f"{part.l2_bytes >> 20} MiB of L2 cache.",
        f"A large 16-bit GEMM sustains {part.matmul_flops_per_s / 1e12:.0f} TFLOP/s, a large copy "
        f"{part.copy_bytes_per_s / 1e12:.2f} TB/s: one byte moved costs as much as {per_byte:.0f} FLOP.",
        f"A launch costs about {LAUNCH_S * 1e6:.0f} us in the cost model, whatever it does.",
    ]


@functools.cache
def _words() -> tuple[tuple[str, str, str, str, str], ...]:
    return tuple((word.group.value, _units(word), word.signature, word.explained, word.example) for word in WORDS)


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
        "source": _source(task),
        "header": f"def {task.name}({parameters}):",
        "outputs": ", ".join(outputs),
        "weights": _with_role(typed, "weight") + (f". In-place inputs: {in_place}" if in_place != "none" else ""),
        "dtype": typed.dtype,
        "others": "".join(_of_other_dtypes(typed)),
        "device": device(target).name,
        "checked": _checked(task),
    }


def _checked(task: TaskSpec) -> str:
    """The sizes of every dim among the shapes that a program is checked at."""
    taken = {name: sorted({sizes[name] for sizes in task.check_shapes}) for name in task.check_shapes[0]}
    return "; ".join(f"{name} takes {', '.join(map(str, sizes))}" for name, sizes in taken.items())


def _of_other_dtypes(typed: Signature) -> Iterator[str]:
    """The tensors of numbers that are not of the task's dtype."""
    others = [i for i in typed.inputs if i.type.dims and i.type.kind is TypeKind.TENSOR and i.dtype != typed.dtype]
    for dtype in dict.fromkeys(i.dtype for i in others):
        yield f"; {', '.join(i.name for i in others if i.dtype == dtype)} {dtype}"


def _with_role(typed: Signature, role: str) -> str:
    return ", ".join(i.name for i in typed.inputs if i.role == role) or "none"


def _source(task: TaskSpec) -> str:
    """Read once for each reference: finding a function's text takes longer than all the rest of a prompt."""
    if task.reference not in _SOURCES:
        _SOURCES[task.reference] = task.reference_source.strip()
    return _SOURCES[task.reference]


def _shapes(task: TaskSpec, target: str) -> list[tuple[str, str, float, float, str]]:
    """Label, sizes, milliseconds of bound and floor, and what makes the floor if not the GEMMs."""
    typed, part, rows = signature(task, task.dtypes[0]), device(target), []
    for label, sizes in task.time_shapes.items():
        asked = (typed, task.gemms, sizes, part)
        bound, bare, floor = (1e3 * seconds(*asked) for seconds in (bound_s, bare_gemm_s, floor_s))
        said = ", ".join(f"{n}={s}" for n, s in sizes.items())
        rows.append((label, said, bound, floor, "" if floor == bare else "least bytes"))
    return rows


def _sizes(task: TaskSpec) -> list[Sizes]:
    """Of every shape that a program is judged at, those that are timed first."""
    return [*task.time_shapes.values(), *task.check_shapes]


def _history(task: TaskSpec, history: tuple[Attempt, ...], choice: Choice, told: Told) -> Mapping[str, object]:
    """The candidate to work on, the best, a line for each of the others, and what is left to do it with.

    After a prompt that was too long for the model, only what the next program cannot be written without.
    """
    focus = _focus(choice)
    shown = {a.step for a in (focus, choice.best) if a is not None}
    short = history[-1].outcome == "too_long"
    typed = signature(task, task.dtypes[0])
    return {
        "last": _shown(focus, _remark(choice, focus, history, told.target), None if short else choice.best),
        "best": _shown(choice.best, _lead(history)) if choice.best is not None and not short else None,
        "others": [] if short else [line(a, history) for a in history if a.step not in shown],
        "untried": [] if short else untried(typed, history, device(told.target), _sizes(task)),
        "left": f"{remaining(told.budget, history)}.{_FOR_NOTHING if told_for_nothing(history) else ''}",
        "ask": _ask(choice),
    }


def _lead(history: tuple[Attempt, ...]) -> str:
    """What the report on the best does not say: that another is as good."""
    order = ranked(history)
    said = slight_lead(order)
    return f"Against step {order[1].step}, the next best, it has {said}." if said else ""


def _ask(choice: Choice) -> str:
    """What to do now."""
    best = choice.best.evaluation if choice.best else None
    if best is not None and nothing_to_win(best):
        return _DONE
    return f"{choice.hint} {_IMPROVE if best else _REPAIR}".strip()


def _focus(choice: Choice) -> Attempt:
    """The last reply, if it holds a program; else what there is to work on, if anything."""
    assert choice.last is not None  # there is a history
    return choice.last if choice.last.evaluation is not None else choice.focus or choice.last


def _shown(attempt: Attempt, remark: str = "", beside: Attempt | None = None) -> Mapping[str, str]:
    """beside: whose program stands above it in full; one that differs by a few lines is shown as its difference."""
    report = feedback(attempt)
    program = attempt.candidate.source if attempt.candidate else attempt.reply[:LONGEST_REPLY]
    if beside is not None and beside is not attempt and beside.candidate and attempt.candidate:
        program = _difference(beside.candidate.source, program, beside.candidate.id)
    verdict = attempt.evaluation.verdict.value if attempt.evaluation else "no program to judge"
    name = attempt.candidate.id if attempt.candidate else f"step {attempt.step}"
    return {"id": name, "program": program, "verdict": verdict, "report": f"{report}\n\n{remark}" if remark else report}


def _difference(best: str, program: str, name: str) -> str:
    """The shorter of a program and its difference from the best."""
    lines = difflib.unified_diff(best.splitlines(), program.splitlines(), name, "this program", n=0, lineterm="")
    said = "\n".join(lines)
    return said if said and 4 * len(said) < 3 * len(program) else program


def _remark(choice: Choice, focus: Attempt, history: tuple[Attempt, ...], target: str) -> str:
    """What the report on the program shown does not say."""
    if choice.last is not None and choice.last is not focus:
        return f"It was followed by a reply without a new program. {feedback(choice.last)}"
    if choice.focus is not None and choice.focus is not focus:
        failed = failures_at_the_end(history)
        if failed:
            return f"This was the last of {failed} failures in a row: leave it, and improve the best instead."
        return no_gain(focus, choice.focus, history, device(target))
    return _lead(history) if focus is choice.best else ""
