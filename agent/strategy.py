"""Chooses from a run's history what its author should look at next. Plain rules; the author does the thinking.

Every strategy is a function of the history alone, so that a run that goes on makes the choice it would have made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from coda_synth.agent.budget import by_tuner
from coda_synth.agent.tuner import Exhausted, tuned
from coda_synth.evaluator.evaluation import Candidate, Verdict
from coda_synth.runs.ranking import best as leader
from coda_synth.runs.ranking import ranked
from coda_synth.runs.record import Attempt

REPAIRS = 2  # tries at mending a broken candidate before going back to the best
PARENTS, CHILDREN = 2, 3  # of a beam
History = tuple[Attempt, ...]

# What children of one parent are asked to try, one each; true of every operator.
HINTS = (
    "Look for fewer launches: what two kernels store and read again, one epilogue might do.",
    "Look for less traffic: store nothing that a later epilogue can recompute from what it reads anyway.",
    "Look at what is known before the run: fold vectors into weights, or merge weights, in a @prepare.",
    "Look at statistics: what is constant along a reduction commutes past the GEMM, and sums can leave as partials.",
    "Look at the schedule: other tiles, stages or slices for the kernel that takes the most time.",
    "Look for a different order of the algebra, one that none of the programs above uses.",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """best: the leader, if any passed. last: the latest attempt, whatever became of it.

    focus: the judged candidate to mend or to improve, the next one's parent; None before one was judged.
    hint: a direction for the author. alone: show the author the task and no history. candidate: what to judge next
    without asking the author, and note: why.
    """

    best: Attempt | None = None
    last: Attempt | None = None
    focus: Attempt | None = None
    hint: str = ""
    alone: bool = False
    candidate: Candidate | None = None
    note: str = ""

    @property
    def parent(self) -> str | None:
        return self.focus.candidate.id if self.focus and self.focus.candidate else None


NO_CHOICE = Choice()  # before the first attempt
Strategy = Callable[[History], Choice]


def choose(history: History) -> Choice:
    """refine: one line of descent. What failed is mended at most REPAIRS times in a row; then the best is improved."""
    best, last = leader(history), history[-1] if history else None
    judged = [a for a in history if a.evaluation is not None and not by_tuner(a)]
    broken = _failures_at_the_end(judged)
    mend = 0 < broken <= REPAIRS or (broken > 0 and best is None)
    return Choice(best, last, judged[-1] if mend else best)


def beam(history: History) -> Choice:
    """PARENTS programs written apart; then, round by round, CHILDREN of each of the best PARENTS, each with a hint."""
    asked = [a for a in history if a.outcome != "interrupted" and not by_tuner(a)]
    done, last = len(asked), history[-1] if history else None
    if done < PARENTS:
        return Choice(leader(history), last, None, HINTS[done % len(HINTS)], alone=True)
    generation, child = divmod(done - PARENTS, PARENTS * CHILDREN)
    before = asked[: PARENTS + generation * PARENTS * CHILDREN]
    parents = _parents(before)
    if not parents:
        return choose(history)
    focus, hint = parents[child // CHILDREN % len(parents)], HINTS[(done - PARENTS) % len(HINTS)]
    return Choice(leader(history), last, focus, hint)


def best_of_n(history: History) -> Choice:
    """A control: every attempt is a first attempt."""
    return Choice(leader(history), history[-1] if history else None, None, alone=True)


def tuner_only(history: History) -> Choice:
    """A control: the author writes until one program passes; after that only its schedule changes. Raises Exhausted."""
    if leader(history) is None:
        return choose(history)
    return _tuned(history)


STRATEGIES: dict[str, Strategy] = {
    "refine": choose,
    "beam": beam,
    "best-of-n": best_of_n,
    "tuner-only": tuner_only,
}


def with_tuning(strategy: Strategy, steps: int) -> Strategy:
    """Lets the tuner have `steps` tries at every measured program of the author that became the best."""

    def choice(history: History) -> Choice:
        own = next((i for i in range(len(history), 0, -1) if not by_tuner(history[i - 1])), 0)
        new = history[own - 1] if own else None
        if new is not None and len(history) - own < steps and _leads_measured(new, history[:own]):
            try:
                return _tuned(history)
            except Exhausted:
                pass
        return strategy(history)

    return choice if steps else strategy


def _tuned(history: History) -> Choice:
    candidate, why = tuned(history)
    return replace(Choice(leader(history), history[-1], leader(history)), candidate=candidate, note=why)


def _leads_measured(attempt: Attempt, history: History) -> bool:
    return attempt is leader(history) and attempt.evaluation is not None and bool(attempt.evaluation.timings)


def _parents(asked: list[Attempt]) -> list[Attempt]:
    """The best, and where too few passed the latest that did not: they can be mended."""
    passed = list(ranked(asked))[:PARENTS]
    failed = [a for a in reversed(asked) if a.evaluation and a.evaluation.verdict is not Verdict.PASSED]
    return (passed + failed)[:PARENTS]


def _failures_at_the_end(judged: list[Attempt]) -> int:
    count = 0
    for attempt in reversed(judged):
        if attempt.evaluation is not None and attempt.evaluation.verdict is Verdict.PASSED:
            break
        count += 1
    return count
