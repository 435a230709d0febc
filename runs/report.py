"""A run as plain rows: what came out, what it cost, and why the best is best. Drawing tables is the command line's."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from coda_synth.coda_api.parsing import parse_statements
from coda_synth.evaluator.evaluation import Evaluation, Modelled, Timing, Verdict
from coda_synth.runs.ranking import NOTICEABLE, ranked
from coda_synth.runs.record import Attempt, Run

_CALL = re.compile(r"^[^:;]+: (\w+): ")  # at a profile line's beginning: the shape, and a launch by its call's name


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt in a line. time_ms is the headline shape's: measured, or an estimate where not `measured`."""

    step: int
    candidate: str  # its id, "" where the reply held none
    parent: str
    author: str
    result: str  # the verdict, or the outcome where nothing was judged
    time_ms: float | None
    measured: bool
    vs_bare: float | None  # bare GEMMs' time over ours
    spill_bytes: int | None  # per thread, the worst launch
    why: str
    input_tokens: int
    output_tokens: int
    usd: float | None
    seconds: float  # the author's and the judge's


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run took. usd is None where any paid call has no known price."""

    attempts: int
    passed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    usd: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """A run's rows in order, its best attempt, why it leads (a sentence's middle), and what the run took."""

    run: Run
    rows: tuple[AttemptRow, ...]
    best: Attempt | None
    why_best: str
    totals: Totals


def report(run: Run, attempts: tuple[Attempt, ...]) -> Report:
    order = ranked(attempts)
    leader = next(iter(order), None)
    return Report(run, tuple(attempt_row(a, leader) for a in attempts), leader, why_best(order), totals(attempts))


def attempt_row(attempt: Attempt, leader: Attempt | None = None) -> AttemptRow:
    candidate, evaluation, usage = attempt.candidate, attempt.evaluation, attempt.usage
    figure = headline(evaluation) if evaluation else None
    judged = sum(evaluation.seconds.values()) if evaluation else 0.0
    return AttemptRow(
        step=attempt.step,
        candidate=candidate.id if candidate else "",
        parent=(candidate.parent or "") if candidate else "",
        author=candidate.author if candidate else "",
        result=evaluation.verdict.value if evaluation else attempt.outcome,
        time_ms=time_ms(figure) if figure else None,
        measured=isinstance(figure, Timing),
        vs_bare=vs_bare(figure) if figure else None,
        spill_bytes=max((r.spill_bytes for r in evaluation.resources), default=None) if evaluation else None,
        why=why(attempt, leader),
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        usd=usage.usd,
        seconds=usage.seconds + judged,
    )


def headline(evaluation: Evaluation) -> Timing | Modelled | None:
    """The figure of the headline shape: measured if there is one, else modelled; None for what did not pass."""
    return evaluation.figures[0] if evaluation.figures else None


def time_ms(figure: Timing | Modelled) -> float:
    return figure.median_ms if isinstance(figure, Timing) else figure.estimate_ms


def vs_bare(figure: Timing | Modelled) -> float | None:
    """The bare GEMMs' time over ours; above 1 we are faster."""
    return figure.ratio("bare_gemm") if isinstance(figure, Timing) else figure.bare_gemm_ms / figure.estimate_ms


def why(attempt: Attempt, leader: Attempt | None = None) -> str:
    """What made this result, in one line; of one that passed, what sets it apart from the leader."""
    evaluation = attempt.evaluation
    if evaluation is None:
        return attempt.note
    if evaluation.verdict is not Verdict.PASSED:
        errors = [d for d in evaluation.diagnostics if d.severity == "error"] or list(evaluation.diagnostics)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return f"{str(errors[0]).partition(chr(10))[0]}{more}"
    return attempt.note or _apart(attempt, leader)


def _apart(attempt: Attempt, leader: Attempt | None) -> str:
    """Its schedule hints, and what the profile says of it and not of the leader."""
    own, others = _said(attempt), _said(leader) if leader is not None and leader is not attempt else ()
    new = [part for part in own if part not in others] or list(own[:1])
    hints = schedule_hints(attempt.candidate.source) if attempt.candidate else ""
    return ": ".join(filter(None, (hints, "; ".join(new if others else own[:2]))))


def _said(attempt: Attempt) -> tuple[str, ...]:
    """The headline shape's part of the profile, without the time, which has a column of its own."""
    lines = attempt.evaluation.profile if attempt.evaluation else ()
    shape = lines[0].partition(": ")[0] if lines else ""
    parts = [p for line in lines if line.startswith(shape) for p in _CALL.sub(r"call \1: ", line).split("; ")]
    return tuple(p for p in parts if not p.startswith(("modelled ", "its sums alone ")))


def schedule_hints(source: str) -> str:
    """What a candidate's kernels ask for: "block_n=128", or "up: block_n=128, out: stages=3" of several."""
    try:
        units = [n for n in parse_statements(source).body if isinstance(n, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    kernels = {u.name: u.decorator_list for u in units if "kernel" in map(_named, u.decorator_list)}
    hints = {n: [ast.unparse(k) for d in made for k in getattr(d, "keywords", ())] for n, made in kernels.items()}
    asked = {name: ", ".join(said) for name, said in hints.items()}
    return ", ".join((f"{name}: " if len(kernels) > 1 else "") + said for name, said in asked.items() if said)


def _named(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def why_best(order: tuple[Attempt, ...]) -> str:
    """By which part of the ranking rule the first of the ranked attempts leads the second."""
    if not order:
        return "no candidate passed"
    if len(order) == 1:
        return "the only candidate that passed every check"
    (first, second), step = (_judged(a) for a in order[:2]), order[1].step
    mine, other = headline(first), headline(second)
    if mine is None or other is None or isinstance(mine, Timing) != isinstance(other, Timing):
        return f"{_kind(mine)}, and step {step}, the next, is {_kind(other)}: an estimate never outranks a measurement"
    said = f"of {len(order)} that passed, the lowest {_kind(mine)} time: {time_ms(mine):.4g} ms"
    if time_ms(mine) < time_ms(other):
        slightly = slight_lead(order)
        return f"{said}, against {time_ms(other):.4g} ms for step {step}, the next{f': {slightly}' if slightly else ''}"
    spills, others = (sum(r.spill_bytes for r in e.resources) for e in (first, second))
    if spills < others:
        return f"{said}, as step {step}, which spills {others} bytes and not {spills}"
    return f"{said}, as step {step}, which spills no less and is no shorter"


def slight_lead(order: tuple[Attempt, ...]) -> str:
    """That the first of the ranked attempts leads the second by less than a model can tell; "" where that is not so."""
    figures = [headline(_judged(a)) for a in order[:2]]
    first, second = (f.estimate_ms if isinstance(f, Modelled) else 0.0 for f in (*figures, None, None)[:2])
    ahead = 1 - first / second if second else 0.0
    if not first or not 0 < ahead < NOTICEABLE:
        return ""
    return f"no lead, since between modelled times {NOTICEABLE:.1%} is the least that counts"


def _judged(attempt: Attempt) -> Evaluation:
    assert attempt.evaluation is not None  # only evaluated attempts are ranked
    return attempt.evaluation


def _kind(figure: Timing | Modelled | None) -> str:
    return "untimed" if figure is None else "measured" if isinstance(figure, Timing) else "modelled"


def totals(attempts: tuple[Attempt, ...]) -> Totals:
    paid = [a.usage for a in attempts if a.usage.input_tokens or a.usage.output_tokens]
    prices = [u.usd for u in paid]
    return Totals(
        attempts=len(attempts),
        passed=sum(1 for a in attempts if a.evaluation and a.evaluation.verdict is Verdict.PASSED),
        input_tokens=sum(u.input_tokens for u in paid),
        cached_tokens=sum(u.cached_tokens for u in paid),
        output_tokens=sum(u.output_tokens for u in paid),
        usd=None if None in prices else sum(p for p in prices if p is not None),
        seconds=sum(attempt_row(a).seconds for a in attempts),
    )
