"""A matrix of runs under equal budgets, and what it shows: shares with their intervals, medians with theirs, and n."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coda_synth.agent.budget import by_tuner, spent
from coda_synth.evaluator.evaluation import Timing, Verdict
from coda_synth.runs.ranking import best
from coda_synth.runs.record import Attempt
from coda_synth.runs.report import headline, time_ms

_Z = 1.96  # of a 95 % interval


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the matrix. author: a provider, "provider/model" or "scripted=PATH". repeat: from 1."""

    task: str
    author: str
    strategy: str
    repeat: int

    def __str__(self) -> str:
        return f"{self.task} {self.author} {self.strategy} {self.repeat}"


@dataclass(frozen=True, slots=True)
class Share:
    """How many of n, with Wilson's 95 % interval."""

    hits: int
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        if not self.n:
            return 0.0, 1.0
        p, z2 = self.hits / self.n, _Z * _Z
        middle = (p + z2 / (2 * self.n)) / (1 + z2 / self.n)
        half = _Z * math.sqrt(p * (1 - p) / self.n + z2 / (4 * self.n * self.n)) / (1 + z2 / self.n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.hits}/{self.n} ({low:.0%} to {high:.0%})" if self.n else "n = 0"


@dataclass(frozen=True, slots=True)
class Middle:
    """The median of n figures, with a 95 % interval from their order (None: too few for one)."""

    value: float | None
    low: float | None
    high: float | None
    n: int

    def __str__(self) -> str:
        if self.value is None:
            return f"n = {self.n}"
        around = f" ({self.low:.4g} to {self.high:.4g})" if self.low is not None else ""
        return f"{self.value:.4g}{around}, n = {self.n}"


@dataclass(frozen=True, slots=True)
class Line:
    """What one author with one strategy showed. near: measured within the stated distance of the bound; fast: at least
    as fast as the stated part of the named baseline, of those measured against it; usd: None where a call had no price.
    """

    author: str
    strategy: str
    runs: int
    pass_at_1: Share
    passed: Share
    to_pass: Middle
    near: Share
    fast: Share
    usd: Middle
    tokens: Middle
    saved: int  # evaluations that the recognition of duplicates spared


def lines(
    runs: Iterable[tuple[Cell, tuple[Attempt, ...]]], within: float, part: float, baseline: str
) -> tuple[Line, ...]:
    """One for each author and strategy. within: of the bound; part: of the baseline's speed."""
    groups: dict[tuple[str, str], list[tuple[Attempt, ...]]] = {}
    for cell, attempts in runs:
        groups.setdefault((cell.author, cell.strategy), []).append(attempts)
    return tuple(_line(*key, group, within, part, baseline) for key, group in sorted(groups.items()))


def _line(
    author: str, strategy: str, runs: list[tuple[Attempt, ...]], within: float, part: float, baseline: str
) -> Line:
    own = [[a for a in run if not by_tuner(a) and a.outcome != "interrupted"] for run in runs]
    first = [next((i for i, a in enumerate(run, 1) if _passed(a)), None) for run in own]
    figures = [headline(b.evaluation) for run in runs if (b := best(run)) and b.evaluation]
    timed = [f for f in figures if isinstance(f, Timing)]
    ratios = [r for f in timed if (r := f.ratio(baseline)) is not None]
    costs = [spent(run) for run in runs]
    return Line(
        author,
        strategy,
        len(runs),
        Share(sum(step == 1 for step in first), len(runs)),
        Share(sum(step is not None for step in first), len(runs)),
        median([float(step) for step in first if step is not None]),
        Share(sum(1 - f.bound_ms / time_ms(f) <= within for f in timed), len(timed)),
        Share(sum(r >= part for r in ratios), len(ratios)),
        median([] if any(c.unpriced for c in costs) else [c.usd for c in costs]),
        median([float(c.tokens) for c in costs]),
        sum(a.outcome == "duplicate" for run in runs for a in run),
    )


def _passed(attempt: Attempt) -> bool:
    return attempt.evaluation is not None and attempt.evaluation.verdict is Verdict.PASSED


def median(values: Sequence[float]) -> Middle:
    """The interval's ends are order statistics: with fewer than six figures none holds the median at 95 %."""
    ordered, n = sorted(values), len(values)
    if not n:
        return Middle(None, None, None, 0)
    out = max((k for k in range(n // 2 + 1) if _outside(k, n) <= 0.025), default=None)
    low, high = (ordered[out], ordered[n - 1 - out]) if out is not None else (None, None)
    return Middle(statistics.median(ordered), low, high, n)


def _outside(k: int, n: int) -> float:
    """The chance that the median lies below the k-th (from 0) of n ordered figures."""
    return sum(math.comb(n, i) for i in range(k + 1)) / float(2**n)
