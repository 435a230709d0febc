"""Chooses from a run's history what its author should look at next. Plain rules; the author does the thinking."""

from __future__ import annotations

from dataclasses import dataclass

from coda_synth.evaluator.evaluation import Verdict
from coda_synth.runs.ranking import ranked
from coda_synth.runs.record import Attempt

REPAIRS = 2  # tries at mending a broken candidate before going back to the best
OTHERS = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """best: the leader, if any passed. last: the latest attempt, whatever became of it.

    focus: the judged candidate to mend or to improve; the next one's parent. others: further ones worth seeing, those
    that passed first and then one for each kind of failure; neither best, last nor focus is among them.
    """

    best: Attempt | None = None
    last: Attempt | None = None
    focus: Attempt | None = None
    others: tuple[Attempt, ...] = ()

    @property
    def parent(self) -> str | None:
        return self.focus.candidate.id if self.focus and self.focus.candidate else None


def choose(history: tuple[Attempt, ...]) -> Choice:
    """An attempt that failed is mended at most REPAIRS times in a row; then the best is improved instead."""
    order = ranked(history)
    best = order[0] if order else None
    last = history[-1] if history else None
    judged = [a for a in history if a.evaluation is not None]
    broken = _failures_at_the_end(judged)
    mend = 0 < broken <= REPAIRS or (broken > 0 and best is None)
    focus = judged[-1] if mend else best
    shown = [a for a in (best, last, focus) if a is not None]
    others = [a for a in (*order, *_one_a_failure(judged)) if all(a is not s for s in shown)]
    return Choice(best, last, focus, tuple(others[:OTHERS]))


def _failures_at_the_end(judged: list[Attempt]) -> int:
    count = 0
    for attempt in reversed(judged):
        if attempt.evaluation is not None and attempt.evaluation.verdict is Verdict.PASSED:
            break
        count += 1
    return count


def _one_a_failure(judged: list[Attempt]) -> list[Attempt]:
    """The latest candidate of each verdict but PASSED, latest first."""
    latest = {a.evaluation.verdict: a for a in judged if a.evaluation and a.evaluation.verdict is not Verdict.PASSED}
    return sorted(latest.values(), key=lambda a: -a.step)
