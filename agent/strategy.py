"""Chooses from a run's history what its author should look at next. Plain rules; the author does the thinking."""

from __future__ import annotations

from dataclasses import dataclass

from coda_synth.evaluator.evaluation import Verdict
from coda_synth.runs.ranking import best as leader
from coda_synth.runs.record import Attempt

REPAIRS = 2  # tries at mending a broken candidate before going back to the best


@dataclass(frozen=True, slots=True)
class Choice:
    """best: the leader, if any passed. last: the latest attempt, whatever became of it.

    focus: the judged candidate to mend or to improve, the next one's parent; None before one was judged.
    """

    best: Attempt | None = None
    last: Attempt | None = None
    focus: Attempt | None = None

    @property
    def parent(self) -> str | None:
        return self.focus.candidate.id if self.focus and self.focus.candidate else None


NO_CHOICE = Choice()  # before the first attempt


def choose(history: tuple[Attempt, ...]) -> Choice:
    """An attempt that failed is mended at most REPAIRS times in a row; then the best is improved instead."""
    best, last = leader(history), history[-1] if history else None
    judged = [a for a in history if a.evaluation is not None]
    broken = _failures_at_the_end(judged)
    mend = 0 < broken <= REPAIRS or (broken > 0 and best is None)
    return Choice(best, last, judged[-1] if mend else best)


def _failures_at_the_end(judged: list[Attempt]) -> int:
    count = 0
    for attempt in reversed(judged):
        if attempt.evaluation is not None and attempt.evaluation.verdict is Verdict.PASSED:
            break
        count += 1
    return count
