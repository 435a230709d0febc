"""The one rule by which candidates of a task are ordered. Everything that says "best" asks here."""

from __future__ import annotations

import math
from collections.abc import Iterable

from coda_synth.evaluator.evaluation import Candidate, Evaluation, Verdict
from coda_synth.runs.record import Attempt

NOTICEABLE = 0.005  # of a modelled time; what differs by less is equal as far as the model can tell
Key = tuple[int, float, int, int]


def rank_key(candidate: Candidate, evaluation: Evaluation, shape: int = 0) -> Key | None:
    """Sorts best first; None for a candidate that did not pass, which has no rank.

    Measured beats modelled, whatever the figures: an estimate never outranks a measurement. Among measured ones the
    lowest median on the headline shape (shape 0, the first one timed) is best, among modelled ones the lowest estimate
    on it. What was measured again, as every new best is, counts by that second time. At equal times the one that
    spills less, then the shorter text.
    """
    if evaluation.verdict is not Verdict.PASSED:
        return None
    spills = sum(r.spill_bytes for r in evaluation.resources)
    if evaluation.timings:
        return 0, _median(evaluation, shape), spills, len(candidate.source)
    if evaluation.modelled:
        return 1, evaluation.modelled[shape].estimate_ms, spills, len(candidate.source)
    return 2, math.inf, spills, len(candidate.source)


def ranked(attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """The attempts that passed, best first; of two equal ones the earlier. Times that were measured twice come before
    times that were measured once: the best of many noisy ones is not the fastest."""
    keyed = ((_key(attempt), attempt) for attempt in attempts)
    passed = [((key[0], not _twice(a), *key[1:]), a.step, a) for key, a in keyed if key is not None]
    return tuple(attempt for _, _, attempt in sorted(passed, key=lambda entry: entry[:2]))


def best(attempts: Iterable[Attempt]) -> Attempt | None:
    """The first of `ranked`, or None where nothing passed."""
    return next(iter(ranked(attempts)), None)


def _median(evaluation: Evaluation, shape: int) -> float:
    """Of the shape, measured again where it was."""
    timing = evaluation.timings[shape]
    return next((t.median_ms for t in evaluation.confirmed if t.shape == timing.shape), timing.median_ms)


def _twice(attempt: Attempt) -> bool:
    return attempt.evaluation is not None and bool(attempt.evaluation.confirmed)


def _key(attempt: Attempt) -> Key | None:
    if attempt.candidate is None or attempt.evaluation is None:
        return None
    return rank_key(attempt.candidate, attempt.evaluation)
