"""What a run may take and what it has taken, both read off its record, so that a resumed run counts as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from coda_synth.agent import models
from coda_synth.agent.provider import Prompt
from coda_synth.agent.tokens import at_most
from coda_synth.evaluator.evaluation import Timing, Verdict
from coda_synth.runs.ranking import best
from coda_synth.runs.record import Attempt
from coda_synth.runs.report import headline, time_ms

TUNER = "tuner"  # the author of candidates that differ from their parent by the schedule alone
_LOWER = "; --max-output-tokens lowers what it may take"
_ON_GPU = ("device", "measure")


class Stop(StrEnum):
    """Why a run ended, in words."""

    ATTEMPTS = "attempts used"
    MINUTES = "minutes used"
    TOKENS = "tokens used"
    USD = "dollars used"
    GPU = "GPU seconds used"
    NEAR = "near the bound"
    VAIN = "nothing better found"
    DONE = "the author has nothing better"
    STUCK = "the author is stuck"
    REFUSED = "the author refused"
    WAITING = "waiting for a reply"
    INTERRUPTED = "interrupted"
    BROKE_OFF = "broke off"  # it could not go on: no network, no credit, no judge


UNCOUNTED = ("interrupted", "done")  # outcomes of attempts that cost none: judged again, or no program at all
UNFINISHED = (Stop.WAITING, Stop.INTERRUPTED, Stop.BROKE_OFF)  # as they are, there is more to do under the same budgets


@dataclass(frozen=True, slots=True)
class Budget:
    """attempts: of the author; the tuner's are free of it. minutes: of work, waiting for a person left out.

    tokens: input and output. usd: where the model has a price. within: 0.05 stops once a measured time is within 5 % of
    the bound. patience: stops when as many of the author's attempts in a row brought nothing better.
    """

    attempts: int = 6
    minutes: float = 8.0
    tokens: int | None = None
    usd: float | None = None
    gpu_seconds: float | None = None
    within: float | None = None
    patience: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has taken. usd: of the calls that have a price; unpriced: how many have none."""

    attempts: int
    tokens: int
    usd: float
    unpriced: int
    seconds: float
    gpu_seconds: float


def spent(history: Sequence[Attempt]) -> Spent:
    """An attempt that was broken off is judged again on resuming, and counts when that is done. A program that was
    refused for its schedule hints alone is told so for nothing, once in a row."""
    paid = [a.usage for a in history if a.usage.input_tokens or a.usage.output_tokens]
    judged = [a.evaluation for a in history if a.evaluation]
    return Spent(
        attempts=sum(1 for a in history if a.outcome not in UNCOUNTED and not by_tuner(a)) - _mistyped(history),
        tokens=sum(u.input_tokens + u.output_tokens for u in paid),
        usd=sum(u.usd or 0.0 for u in paid),
        unpriced=sum(u.usd is None for u in paid),
        seconds=sum(a.seconds for a in history),
        gpu_seconds=sum(e.seconds.get(stage, 0.0) for e in judged for stage in _ON_GPU),
    )


def told_for_nothing(history: Sequence[Attempt]) -> bool:
    """Whether the author's last program was one that cost no attempt."""
    found = [_hints_alone(a) for a in history if not by_tuner(a)]
    return found[-1:] == [True] and found[-2:] != [True, True]


def _mistyped(history: Sequence[Attempt]) -> int:
    """Programs refused for their hints alone, those left out that follow another one."""
    found = [_hints_alone(a) for a in history if not by_tuner(a)]
    return sum(now and not before for before, now in zip([False, *found], found, strict=False))


def _hints_alone(attempt: Attempt) -> bool:
    told = attempt.evaluation.diagnostics if attempt.evaluation else ()
    refused = attempt.evaluation is not None and attempt.evaluation.verdict is Verdict.REJECTED
    return refused and all(d.rule == "ScheduleHint" for d in told if d.severity == "error")


def by_tuner(attempt: Attempt) -> bool:
    return attempt.candidate is not None and attempt.candidate.author == TUNER


def used_up(budget: Budget, history: Sequence[Attempt]) -> tuple[Stop, str] | None:
    """The first budget that is used, with what to say beside its name."""
    took = spent(history)
    limits: tuple[tuple[Stop, float, float | None], ...] = (
        (Stop.ATTEMPTS, took.attempts, budget.attempts),
        (Stop.MINUTES, took.seconds, 60 * budget.minutes),
        (Stop.TOKENS, took.tokens, budget.tokens),
        (Stop.USD, took.usd, budget.usd),
        (Stop.GPU, took.gpu_seconds, budget.gpu_seconds),
    )
    for stop, amount, limit in limits:
        if limit is not None and amount >= limit:
            return stop, ""
    return _no_headroom(budget, history)


def _no_headroom(budget: Budget, history: Sequence[Attempt]) -> tuple[Stop, str] | None:
    leader = best(history)
    figure = headline(leader.evaluation) if leader and leader.evaluation else None
    if leader is None or figure is None:
        return None
    if budget.within is not None and isinstance(figure, Timing) and figure.median_ms:
        gap = 1 - figure.bound_ms / figure.median_ms
        if gap <= budget.within:
            return Stop.NEAR, f"step {leader.step} takes {time_ms(figure):.4g} ms, {gap:.1%} above what is possible"
    vain = sum(1 for a in history if a.step > leader.step and a.outcome not in UNCOUNTED and not by_tuner(a))
    if budget.patience is not None and vain >= budget.patience:
        return Stop.VAIN, f"{vain} attempts since step {leader.step} brought no gain"
    return None


def bearable_tries(budget: Budget, history: Sequence[Attempt], model: str, prompt: Prompt, output: int) -> int:
    """How many calls of this size what is left of the budget bears at worst, as one that breaks in mid-answer is paid
    for too; at least one, where `cannot_afford` found no reason against it."""
    took, asked = spent(history), at_most(prompt.system + prompt.user)
    worst, most = models.worst_usd(model, asked, output), 1 << 30
    if budget.tokens is not None:
        most = min(most, (budget.tokens - took.tokens) // (asked + output))
    if budget.usd is not None and worst:
        most = min(most, int((budget.usd - took.usd) / worst))
    return max(1, most)


def cannot_afford(budget: Budget, history: Sequence[Attempt], model: str, prompt: Prompt, output: int) -> str:
    """Why the next call may not be made, "" where it may: at worst it must fit into what is left of the budget.

    output: the longest answer that the call allows, in tokens.
    """
    took, asked = spent(history), at_most(prompt.system + prompt.user)
    if budget.tokens is not None and took.tokens + asked + output > budget.tokens:
        left = budget.tokens - took.tokens
        return f"the next call may take {asked + output:,} tokens, and {left:,} are left of {budget.tokens:,}{_LOWER}"
    worst = models.worst_usd(model, asked, output)
    if budget.usd is not None and worst is not None and took.usd + worst > budget.usd:
        left_usd = budget.usd - took.usd
        most, least = math.ceil(round(worst * 100, 6)) / 100, math.floor(round(left_usd * 100, 6)) / 100
        return f"the next call may cost ${most:.2f}, and ${least:.2f} are left of ${budget.usd:.2f}{_LOWER}"
    return ""


def remaining(budget: Budget, history: Sequence[Attempt]) -> str:
    """What is left, for the author: "4 of 6 attempts, $1.20 of $2.00"."""
    took = spent(history)
    said = [f"{budget.attempts - took.attempts} of {budget.attempts} attempts"]
    if budget.tokens is not None:
        said.append(f"{budget.tokens - took.tokens:,} of {budget.tokens:,} tokens")
    if budget.usd is not None and took.usd:
        said.append(f"${budget.usd - took.usd:.2f} of ${budget.usd:.2f}")
    return ", ".join(said)
