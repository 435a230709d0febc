"""Chooses from a run's history what its author should look at next. Plain rules; the author does the thinking.

Every strategy is a function of the history alone, so that a run that goes on makes the choice it would have made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    broken = failures_at_the_end(judged)
    mend = 0 < broken <= REPAIRS or (broken > 0 and best is None)
    return Choice(best, last, judged[-1] if mend else best)


def beam(history: History, coming: int = 0) -> Choice:
    """PARENTS programs written apart; then, round by round, CHILDREN of each of the best PARENTS, each with a hint;
    a round that begins before anything passed mends instead.

    coming: so many more were asked for, whose end is not known yet.
    """
    asked = _asked(history)
    done, last = len(asked) + coming, history[-1] if history else None
    if done < PARENTS:
        return Choice(leader(history), last, None, HINTS[done % len(HINTS)], alone=True)
    begun = _begun(done)
    parents = _parents(asked[:begun])
    if not parents:
        return choose(history)
    focus = parents[(done - begun) // CHILDREN % len(parents)]
    return Choice(leader(history), focus, focus, HINTS[(done - PARENTS) % len(HINTS)])


def _asked(history: History) -> list[Attempt]:
    return [a for a in history if a.outcome != "interrupted" and not by_tuner(a)]


def _begun(done: int) -> int:
    """How many were asked for before the round began to which the next one belongs."""
    brood = PARENTS * CHILDREN
    return 0 if done < PARENTS else PARENTS + (done - PARENTS) // brood * brood


def _beam_ahead(history: History) -> Choice | None:
    """The next but one of a beam, where both belong to one round and that one can be mended or improved."""
    coming = len(_asked(history)) + 1
    if _begun(coming) == coming or (coming > PARENTS and not _parents(_asked(history)[: _begun(coming)])):
        return None
    return beam(history, coming=1)


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


# What to ask the author while the candidate of the next step is judged: a function of the history before that step, or
# None where it depends on what becomes of it.
AHEAD: dict[str, Callable[[History], Choice | None]] = {"beam": _beam_ahead, "best-of-n": best_of_n}


@dataclass(frozen=True, slots=True)
class Turn:
    """A choice, and the part of the history from which it and its prompt are made."""

    choice: Choice
    known: History


def turn(name: str, history: History, tuning: int = 0, ahead: bool = False) -> Turn:
    """The next step under the strategy of this name; `ahead` where the author may be asked before the last candidate
    is judged. Its request is then the same whether it was or not, so that a run that goes on asks the same."""
    before = _before_the_last(history)
    early = AHEAD[name](before) if ahead and not tuning and name in AHEAD and before is not None else None
    if early is not None and before is not None:
        return Turn(early, before)
    return Turn(with_tuning(STRATEGIES[name], tuning)(history), history)


def turn_ahead(name: str, history: History, tuning: int = 0) -> Turn | None:
    """The step after the next one, while the next one's candidate is judged; None where it must wait for that."""
    known = settled(history)
    choice = AHEAD[name](known) if name in AHEAD and not tuning else None
    return None if choice is None else Turn(choice, known)


def settled(history: History) -> History:
    """Without interrupted attempts at its end: their candidates are judged again."""
    end = len(history)
    while end and history[end - 1].outcome == "interrupted":
        end -= 1
    return history[:end]


def _before_the_last(history: History) -> History | None:
    """What was known when the last candidate was about to be judged; None where the last attempt was not judged."""
    return settled(history[:-1]) if history and history[-1].outcome == "evaluated" else None


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
    """The best that passed. Where none did there are none: three ways to mend one program are two too many."""
    return list(ranked(asked))[:PARENTS]


def failures_at_the_end(history: Sequence[Attempt]) -> int:
    """Of the author's judged programs, how many failed since the last that passed."""
    count = 0
    for attempt in reversed(history):
        if attempt.evaluation is None or by_tuner(attempt):
            continue
        if attempt.evaluation.verdict is Verdict.PASSED:
            break
        count += 1
    return count
