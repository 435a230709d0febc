"""A new best is measured again before it counts: the best of many noisy timings is not the fastest candidate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from coda_synth.evaluator.evaluation import Candidate, Evaluation, Verdict
from coda_synth.runs.ranking import best, rank_key
from coda_synth.runs.record import Attempt

if TYPE_CHECKING:
    from coda_synth.agent.loop import Judge

_OTHER = 1_000_003  # from a seed to another one, which a repeated run repeats


def confirmed(judge: Judge, candidate: Candidate, found: Evaluation, history: Iterable[Attempt]) -> Evaluation:
    """`found` itself where it does not lead by measurement. Otherwise the candidate is judged once more, on a fresh
    seed: its new times are kept beside the first ones and count, and a verdict that is not PASSED takes its place."""
    if not leads(candidate, found, history):
        return found
    again = judge.evaluate(candidate, seed=(found.seed + _OTHER) % (1 << 31))
    if again.verdict is not Verdict.PASSED:
        return again
    return replace(found, confirmed=again.timings)


def leads(candidate: Candidate, found: Evaluation, history: Iterable[Attempt]) -> bool:
    """Whether it was measured, and faster than everything before it."""
    key = rank_key(candidate, found)
    if key is None or not found.timings:
        return False
    leader = best(history)
    if leader is None or leader.candidate is None or leader.evaluation is None:
        return True
    before = rank_key(leader.candidate, leader.evaluation)
    return before is None or key < before
