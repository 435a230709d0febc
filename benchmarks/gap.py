"""Figures over the rounds of a race and over operators: ratios, geometric means, the share of a gap that is closed.

A round is a list's place: contestants' times at one place were taken side by side, so a ratio is taken in each round
and the median of the ratios is what counts. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coda_synth.evaluator.measured import summary

LEAST_GAP = 0.03  # of the bound; below it there is nothing to close


@dataclass(frozen=True, slots=True)
class Figure:
    """A median and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def negative(self) -> bool:
        """Whether it lies below zero with its whole interval."""
        return self.high < 0


def figure(values: Sequence[float]) -> Figure:
    found = summary(values)
    return Figure(found.median_ms, found.low_ms, found.high_ms)


def ratio(above: Sequence[float], below: Sequence[float]) -> Figure:
    return figure([a / b for a, b in zip(above, below, strict=True)])


def over(error: float, other: float) -> float:
    """error / other, where both may be zero."""
    return error / other if other else math.inf if error else 1.0


def geometric_mean(values: Iterable[float]) -> float:
    """Raises ValueError for no values."""
    logs = [math.log(value) for value in values]
    if not logs:
        raise ValueError("a geometric mean of nothing")
    return math.exp(sum(logs) / len(logs))


def bound(bare_ms: Sequence[float], bytes_ms: float) -> list[float]:
    """In each round what no implementation passes: the bare GEMMs, or the least bytes at the measured bandwidth."""
    return [max(bare, bytes_ms) for bare in bare_ms]


def share(compiled: Sequence[float], ours: Sequence[float], least: Sequence[float]) -> Figure | None:
    """(compiled - ours) / (compiled - least) of times: 0 is as fast as compiled, 1 at the bound.

    Made of the ratios to compiled, whose intervals it takes at their worst together. None where the gap is not above
    LEAST_GAP of the bound, or where its interval holds none.
    """
    own, floor = ratio(ours, compiled), ratio(least, compiled)
    if floor.high >= 1 or 1 <= (1 + LEAST_GAP) * floor.value:
        return None
    corners = [(1 - o) / (1 - f) for o in (own.low, own.high) for f in (floor.low, floor.high)]
    return Figure((1 - own.value) / (1 - floor.value), min(corners), max(corners))


def mean(figures: Sequence[Figure]) -> Figure:
    """The mean over operators. Its interval takes their errors for independent: distances from the value add in
    squares. Raises ValueError for no figures."""
    if not figures:
        raise ValueError("a mean of nothing")
    count = len(figures)
    value = sum(f.value for f in figures) / count
    below = math.sqrt(sum((f.value - f.low) ** 2 for f in figures)) / count
    above = math.sqrt(sum((f.high - f.value) ** 2 for f in figures)) / count
    return Figure(value, value - below, value + above)
