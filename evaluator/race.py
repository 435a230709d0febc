"""A race: contestants take turns in short bursts until the median of each is known well enough.

Bursts and not single runs, because on a card that is limited by its power the clock follows what ran in the last
milliseconds: alternating single runs would charge every contestant with the average power of all. The first runs of a
burst let the clock settle and are not timed. Runs of one burst are alike, so the interval is that of burst medians.
Needs no torch; what a run does, and what tells its time, come from outside.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from coda_synth.evaluator.measured import Sample, summary

Run = Callable[[], object]
UNTIMED, TIMED = 3, 5  # runs of a burst
_FEWEST, _LEAST, _MOST = 6, 10, 80  # bursts: whatever they take; before a race may end early; at most
_PRECISE = 0.004  # half the confidence interval over the median at which more bursts are not worth their time
_WARM_S = 0.6


@dataclass(frozen=True, slots=True)
class Lap:
    """One run, and what puts its inputs back before it, untimed."""

    run: Run
    prepare: Run = lambda: None


class Clock(Protocol):
    """Tells the time of runs; name: how, in words, for the receipt."""

    name: str

    def laps(self, laps: Sequence[Lap]) -> list[float]:
        """Milliseconds of each run, one after the other, each from a cold cache."""


class WallClock:
    """The host's clock, for runs that end before they return."""

    name = "the host's monotonic clock"

    def laps(self, laps: Sequence[Lap]) -> list[float]:
        times = []
        for lap in laps:
            lap.prepare()
            start = time.perf_counter()
            lap.run()
            times.append(1e3 * (time.perf_counter() - start))
        return times


def race(contestants: Mapping[str, Sequence[Lap]], seconds: float, clock: Clock) -> dict[str, Sample]:
    """Milliseconds by contestant. A contestant is a list of laps, one for each set of inputs, that do the same work."""
    return {name: _sample(medians) for name, medians in rounds(contestants, seconds, clock).items()}


def rounds(contestants: Mapping[str, Sequence[Lap]], seconds: float, clock: Clock) -> dict[str, list[float]]:
    """The median of each burst by contestant, milliseconds; bursts of one place in the lists ran side by side, each
    time in another order, as a power limit also charges a contestant with what ran before it.

    Ends when every interval is narrow, or when `seconds` are spent and every contestant had a few bursts.
    """
    bursts: dict[str, list[float]] = {name: [] for name in contestants}
    began, warm, turn, last = time.monotonic(), False, 0, ""
    while True:
        order = random.Random(turn).sample(list(contestants), len(contestants))
        if order[0] == last:  # nobody runs twice in a row
            order.append(order.pop(0))
        for last in order:
            bursts[last].append(_burst(contestants[last], turn, clock))
        turn += 1
        spent = time.monotonic() - began
        if not warm and spent > min(_WARM_S, seconds / 4):
            warm, bursts = True, {name: [] for name in contestants}
        elif warm and (spent > seconds and _fewest(bursts) >= _FEWEST or _settled(bursts)):
            return bursts


def _burst(laps: Sequence[Lap], turn: int, clock: Clock) -> float:
    """The median of the timed runs of one burst; the sets of inputs go round."""
    first = turn * (UNTIMED + TIMED)
    chosen = [laps[(first + i) % len(laps)] for i in range(UNTIMED + TIMED)]
    return median(clock.laps(chosen)[UNTIMED:])


def _sample(medians: Sequence[float]) -> Sample:
    return replace(summary(medians), repeats=TIMED * len(medians))


def _fewest(bursts: Mapping[str, list[float]]) -> int:
    return min(map(len, bursts.values()))


def _settled(bursts: Mapping[str, list[float]]) -> bool:
    turns = _fewest(bursts)
    if turns < _LEAST:
        return False
    found = [summary(medians) for medians in bursts.values()]
    return turns >= _MOST or all(s.high_ms - s.low_ms <= 2 * _PRECISE * s.median_ms for s in found)
