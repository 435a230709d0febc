"""The tuner: proposes the best program so far under another schedule, from what was measured. It changes no maths."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from coda_synth.agent.budget import TUNER
from coda_synth.agent.planner_tune import Exhausted, next_schedule
from coda_synth.coda_api.canonical import canonical
from coda_synth.coda_api.errors import ProgramError
from coda_synth.coda_api.parsing import parse_statements
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.evaluation import Candidate
from coda_synth.runs.ranking import best
from coda_synth.runs.record import Attempt

__all__ = ["Exhausted", "tuned", "with_hints"]


def tuned(history: tuple[Attempt, ...]) -> tuple[Candidate, str]:
    """The best candidate with one hint changed, and why; raises Exhausted where no neighbour is left to try."""
    leader = best(history)
    if leader is None or leader.candidate is None:
        raise Exhausted("no candidate has passed, so there is nothing to tune")
    source, form = leader.candidate.source, _form(leader.candidate.source)
    kin = tuple(a for a in history if a.evaluation and a.candidate and _form(a.candidate.source) == form)
    proposal = next_schedule(_kernels(source), kin)
    changed = Candidate(leader.candidate.task, with_hints(source, proposal.hints), TUNER, leader.candidate.id)
    return changed, proposal.reason


def with_hints(source: str, hints: Mapping[str, Mapping[str, object]]) -> str:
    """The text with the schedule hints of its kernels replaced, and nothing else changed."""
    lines = source.split("\n")
    for function in reversed(_functions(source)):
        mark = function.decorator_list[0] if function.decorator_list else None
        if mark is not None and _named(mark) == "kernel" and mark.end_lineno is not None:
            said = ", ".join(f"{name}={value!r}" for name, value in hints.get(function.name, {}).items())
            lines[mark.lineno - 1 : mark.end_lineno] = [f"@kernel({said})" if said else "@kernel"]
    return "\n".join(lines)


def _form(source: str) -> str:
    try:
        return canonical(read(source))
    except ProgramError:
        return source


def _kernels(source: str) -> tuple[str, ...]:
    """Those with a GEMM: the others have nothing to tune."""
    return tuple(f.name for f in _functions(source) if any(_is_gemm(n) for n in ast.walk(f)))


def _is_gemm(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "gemm"


def _functions(source: str) -> list[ast.FunctionDef]:
    return [n for n in parse_statements(source).body if isinstance(n, ast.FunctionDef)]


def _named(mark: ast.expr) -> str:
    called = mark.func if isinstance(mark, ast.Call) else mark
    return called.id if isinstance(called, ast.Name) else ""
